"""The page that a browser shows: one file with all that it needs."""
