"""The observers that ship with ortopt."""
