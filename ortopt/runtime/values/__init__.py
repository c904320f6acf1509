"""Values between numpy, Python and ONNX Runtime."""
