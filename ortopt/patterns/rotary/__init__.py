"""Rotary position embeddings, in whatever spelling: pairs of elements of a head, turned by angles that are tables."""
