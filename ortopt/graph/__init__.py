"""One graph on onnx-ir: edits, and questions about nodes, values and their shapes."""
