"""The runtime that executes fusion groups, each in an ONNX Runtime session of its own."""
