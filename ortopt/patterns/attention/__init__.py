"""Attention, in whatever spelling: what a block computes, in one form."""
