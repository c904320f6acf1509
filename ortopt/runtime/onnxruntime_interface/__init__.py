"""The methods of ONNX Runtime's session, for a session of several groups."""
