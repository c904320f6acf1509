"""Models in files: reading, checking and writing them."""
