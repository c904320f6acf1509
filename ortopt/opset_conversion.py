"""Raise a model's opset with onnx's version converter."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.errors import UsageError


def convert(model: ir.Model, version: int) -> ir.Model:
    """Raise the opset of ai.onnx.

    Args:
        model: The model.
        version: The version that it should have.

    Raises:
        UsageError: If it cannot be.
    """
    if model.opset_imports.get("") == version:
        return model
    raise UsageError("not yet")
