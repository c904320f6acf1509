"""Symbolic dimensions."""

INVENTED = "ortopt:"
"""What the names of dimensions that no file gave start with; files do not get them."""
