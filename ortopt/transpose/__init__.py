"""Fewer transposes: which ops can work in another layout, what a choice of layouts costs, and how to make it."""
