"""What can be known of a model without running it: shapes, contents, kernels, providers."""
