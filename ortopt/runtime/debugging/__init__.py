"""Groups that are compared with a reference, and written to files."""
