"""What runs a group: its description, sessions of ONNX Runtime, the host."""
