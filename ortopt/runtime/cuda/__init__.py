"""A CUDA device that the groups of a session share."""
