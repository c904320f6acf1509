"""Half precision: which nodes of a float32 model compute in 16 bits, where Casts go, and the model that comes of it."""
