"""Names of domains of ops; that of ONNX's own is empty."""

from __future__ import annotations

from typing import Final

MICROSOFT: Final = "com.microsoft"
"""ONNX Runtime's ops beyond the standard."""

BLOCKED: Final = "com.microsoft.nchwc"
"""ONNX Runtime's ops on images in blocks of channels, which it makes when it loads a model."""

ML: Final = "ai.onnx.ml"
"""Classical machine learning."""

TRAINING: Final = "ai.onnx.preview.training"
"""Training, as a preview."""
