"""What a session records of itself: counters, a timeline, ONNX Runtime's profiles."""
