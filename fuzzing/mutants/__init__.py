"""The examples of the passes' own tests, changed: what is one step away from what a pass was written for."""
