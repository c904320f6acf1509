"""Measuring what forms cost on this machine: a table of costs of one's own."""
