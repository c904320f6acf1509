"""One run: the levels in order, verification, repair and what is left of it."""
