"""Nodes that are put into a graph before another node."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM


class NewNodes:
    """Makes nodes and constants of one graph.

    Args:
        model: The model whose main graph it is.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.opset = model.opset_imports.get("", 0)
        self._imports = model.opset_imports
        taken = {value.name for node in model.graph.all_nodes() for value in node.outputs}
        self._taken = taken | {value.name for value in (*model.graph.inputs, *model.graph.initializers.values())}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._numbers = itertools.count()

    def name(self, stem: str) -> str:
        """A name that no value has."""
        while (name := f"{stem}_{next(self._numbers)}") in self._taken:
            pass
        return name

    def add(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        rank: int | None = None,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Put a node before another one.

        Args:
            before: The other one.
            op_type: Its op.
            inputs: Its operands.
            attributes: Its attributes.
            domain: Its domain, imported if it is not.
            rank: Of its output, where that must be known.
            dtype: Of its output; None for the first operand's.

        Returns:
            Its output.
        """
        if domain:
            self._imports.setdefault(domain, 1)
        node = ir.node(op_type, inputs, dict(attributes or {}), domain=domain)
        output = node.outputs[0]
        output.name = self.name(op_type.lower())
        dtype = dtype or (None if inputs[0] is None else inputs[0].dtype)
        output.type = None if dtype is None else ir.TensorType(dtype)
        if rank is not None:
            output.shape = ir.Shape([None] * rank)
        self.graph.insert_before(before, node)
        return output

    def constant(self, content: Any, dtype: Any = np.int64) -> ir.Value:
        """An initializer, shared by all that want the same."""
        array = np.asarray(content, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            value = ir.Value(name=self.name("constant"), const_value=ir.Tensor(array))
            value.type, value.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
            self.graph.register_initializer(value)
            self._constants[key] = value
        return self._constants[key]

    def with_axes(self, before: ir.Node, op_type: str, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """A Squeeze or an Unsqueeze, in the form of the opset."""
        assert value.shape is not None
        rank = len(value.shape) + (len(axes) if op_type == "Unsqueeze" else -len(axes))
        if self.opset < AXES_ARE_AN_INPUT_FROM[op_type]:
            return self.add(before, op_type, [value], {"axes": list(axes)}, rank=rank)
        return self.add(before, op_type, [value, self.constant(list(axes))], rank=rank)

    def transpose(self, before: ir.Node, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """A Transpose; of a Transpose that nobody else uses, one of both; nothing where the order stays."""
        node = value.producer()
        if node is not None and node.domain == "" and node.op_type == "Transpose" and node.inputs[0] is not None:
            inner = node.attributes.get_ints("perm", tuple(reversed(range(len(order)))))
            order, value = [inner[axis] for axis in order], node.inputs[0]
        if list(order) == list(range(len(order))):
            return value
        return self.add(before, "Transpose", [value], {"perm": list(order)}, rank=len(order))
