"""Timing a model under ONNX Runtime."""
