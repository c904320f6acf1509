"""The graph layer: models in and out of files, edits, questions, and the arithmetic of symbolic dimensions."""
