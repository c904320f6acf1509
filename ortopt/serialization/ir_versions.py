"""The IR versions of ONNX from which on its files have something."""

from __future__ import annotations

from typing import Final

CONSTANT_INITIALIZERS_FROM_IR: Final = 4
"""Initializers that are no graph inputs, and so constants; before, every initializer had to be one."""

FUNCTION_TYPES_FROM_IR: Final = 10
"""Types of values in functions; before, exporters wrote them into the main graph."""

METADATA_FROM_IR: Final = 10
"""Metadata of nodes."""

DEVICES_FROM_IR: Final = 11
"""Device configurations."""

__all__ = ["CONSTANT_INITIALIZERS_FROM_IR", "DEVICES_FROM_IR", "FUNCTION_TYPES_FROM_IR", "METADATA_FROM_IR"]
