"""What is known about a model: shapes, contents of shape tensors, kernels, placement."""
