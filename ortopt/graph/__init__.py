"""The graph layer on onnx-ir: files in and out, edits, questions."""
