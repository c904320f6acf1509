"""Patterns that several passes recognize, a file for each family."""
