"""What can be known of a graph: shapes, symbolic values, kernels, placement."""
