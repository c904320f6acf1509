"""Other inputs and outputs of a model on request, each with the exact adapter to the original."""
