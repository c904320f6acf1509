"""What nodes and values carry besides their structure, read without making it.

onnx-ir makes an empty dictionary for each node and value that is asked for its metadata; over 100,000 of them that
costs more than writing the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir


def properties_of(owner: ir.Node | ir.Value) -> Mapping[str, str] | None:
    """``owner.metadata_props``, or something false if there are none."""
    return owner._metadata_props


def meta_of(owner: ir.Node | ir.Value) -> Mapping[str, Any] | None:
    """``owner.meta``, or something false if there is none."""
    return owner._metadata
