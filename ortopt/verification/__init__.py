"""Whether a result computes what the original computes."""
