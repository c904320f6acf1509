"""Decode loops without copies of the cache: past and present of a model in one buffer."""
