"""How many of the blocks that a model has by its architecture are single ops in the result."""
