"""What versions of a model cost: measured in turns, in child processes."""
