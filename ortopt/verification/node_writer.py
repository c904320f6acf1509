"""Writes nodes into a copy of a model that is only run, before one of its nodes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir

_CASTLIKE: Final = 15


class NodeWriter:
    """Writes nodes before another one.

    Args:
        node: The node, of a graph.
        opset: The opset of ai.onnx.
    """

    def __init__(self, node: ir.Node, opset: int) -> None:
        self.node = node
        self.opset = opset
        assert node.graph is not None
        self._graph = node.graph

    def __call__(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """The only output of a new node."""
        return self.several(1, op_type, *inputs, **attributes)[0]

    def several(self, count: int, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> tuple[ir.Value, ...]:
        """So many outputs of a new node; ``domain`` is no attribute."""
        domain = attributes.pop("domain", "")
        new = ir.node(op_type, list(inputs), attributes=attributes or None, domain=domain, num_outputs=count)
        self._graph.insert_before(self.node, new)
        return tuple(new.outputs)

    def constant(self, value: Any, dtype: Any) -> ir.Value:
        """A constant of a dtype of numpy."""
        return self("Constant", value=ir.Tensor(np.array(value, dtype)))

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """A value in another dtype."""
        return self("Cast", value, to=dtype.value)

    def cast_like(self, value: ir.Value, other: ir.Value) -> ir.Value:
        """A value of float32 in the dtype of another; before there was CastLike, as far as that is known."""
        if other.dtype == ir.DataType.FLOAT:
            return value
        if other.dtype is None and self.opset >= _CASTLIKE:
            return self("CastLike", value, other)
        return value if other.dtype is None else self.cast(value, other.dtype)

    def become(self, value: ir.Value) -> None:
        """Let the node give a value, whatever it did, as its first output."""
        self.node.resize_inputs(1)
        self.node.replace_input_with(0, value)
        self.node.resize_outputs(1)
        self.node.attributes.clear()
        self.node.op_type, self.node.domain = "Identity", ""
