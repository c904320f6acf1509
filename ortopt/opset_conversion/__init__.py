"""Models in another version of the standard opset."""
