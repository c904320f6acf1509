"""Many models checked against a baseline: what each run gives, what has become worse, and who is told."""
