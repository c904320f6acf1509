"""The graph layer: files in and out, edits, and questions."""
