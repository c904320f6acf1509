"""Versions of a group for the arguments that it is called with, in memory and in files."""
