"""A fixed batch that becomes symbolic, where every node is proven to treat its rows one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.analysis.dimensions import forget_computed_shapes
from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import CancellationToken
from ortopt.errors import InvalidModelError, UsageError
from ortopt.graph import scope
from ortopt.graph.match import Refusal
from ortopt.interface.batch_places import BatchPlaces, Edit
from ortopt.interface.change import Arrays, Insertion, InterfaceChange
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.terminal_text import node_name, one_line, quoted


class DynamicBatch(InterfaceChange):
    """A batch of any size; the original runs once for each part of it that is as large as its own.

    The batch is the first axis of the first input that has one, and of every other input whose first axis is as large.

    Args:
        model: The model; changed in place.
        name: The name of the dimension.
        token: Cancellation token.

    Raises:
        UsageError: If no input has a fixed first axis, or the name is one of the model already.
        InvalidModelError: If a node is not known to work for any size; the message names it, with code and reason.
    """

    def __init__(self, model: ir.Model, name: str, token: CancellationToken) -> None:
        inputs = {value.name or "": value for value in model.graph.inputs if not value.is_initializer()}
        sizes = {key: value.shape[0] for key, value in inputs.items() if value.shape}
        fixed = [size for size in sizes.values() if isinstance(size, int) and size > 0]
        if not fixed:
            raise UsageError("dynamic_batch: no input has a first dimension of a fixed size")
        taken = {str(dim) for value in inputs.values() for dim in value.shape or () if not isinstance(dim, int)}
        if name in taken:
            raise UsageError(f"dynamic_batch: a dimension is named {quoted(name)} already")
        self.size = fixed[0]
        self._inputs = tuple(key for key, size in sizes.items() if size == self.size)
        places = self._proven(model, token)
        self._outputs = {value.name or "": places.of[value] for value in places.graph.outputs if value in places.of}
        nodes = dict(zip(places.graph, tuple(model.graph), strict=True))
        _apply(model, [(nodes[edit.node], edit) for edit in places.edits], inputs[self._inputs[0]], token)
        self._declare(model, name)

    def _proven(self, model: ir.Model, token: CancellationToken) -> BatchPlaces:
        """The places of the batch, in a copy of the model."""
        copy = load(model, token, checked=False)
        scope.attach(copy, Options(), token)
        infer_model(copy, token)
        first = [value for value in copy.graph.inputs if value.name in self._inputs]
        try:
            return BatchPlaces(copy.graph, self.size, first, token)
        except Refusal as refusal:
            node = next(about for about in refusal.about if isinstance(about, ir.Node))
            raise InvalidModelError(
                f"the batch cannot be of any size: {node.op_type} {quoted(node_name(node))}: {one_line(refusal.reason)}"
                f" [{refusal.code.value}]"
            ) from refusal

    def _declare(self, model: ir.Model, name: str) -> None:
        """Let inputs and outputs declare the new dimension; nothing else was said of it."""
        declared = {value: value.shape for value in model.graph.outputs}
        forget_computed_shapes(model)
        for value, shape in declared.items():
            place = self._outputs.get(value.name or "")
            if shape is None or place is None:
                value.shape = shape
            else:
                value.shape = _with(shape, place, name if shape[place] == self.size else None)
        for value in model.graph.inputs:
            if value.name in self._inputs and value.shape is not None:
                value.shape = _with(value.shape, 0, name)

    def calls(self, inputs: Arrays) -> Sequence[Arrays] | None:
        """One call for each part of the batch that is as large as that of the original."""
        count, rest = divmod(len(inputs[self._inputs[0]]), self.size)
        if rest or not count:
            return None
        return [self._rows(inputs, range(i * self.size, (i + 1) * self.size)) for i in range(count)]

    def outputs(self, results: Sequence[Arrays]) -> Arrays:
        """Their results one behind the other."""
        return {
            name: np.concatenate([result[name] for result in results], self._outputs[name])
            if name in self._outputs
            else array
            for name, array in results[0].items()
        }

    def variants(self, inputs: Arrays) -> list[Arrays]:
        """Inputs as large as those of the original, and twice as large or more: rows again, in the other order."""
        rows = len(inputs[self._inputs[0]])
        if not rows:
            return []
        several = 2 * self.size * (-(-rows // (2 * self.size)))
        order = (list(range(rows)) + list(reversed(range(rows)))) * several
        return [self._rows(inputs, order[: self.size]), self._rows(inputs, order[:several])]

    def _rows(self, inputs: Arrays, rows: Sequence[int]) -> Arrays:
        chosen = list(rows)
        return {name: np.asarray(each)[chosen] if name in self._inputs else each for name, each in inputs.items()}


def _with(shape: ir.Shape, axis: int, dim: str | None) -> ir.Shape:
    dims: list[Any] = [dim if i == axis else old for i, old in enumerate(shape.dims)]
    return ir.Shape(dims, denotations=[shape.get_denotation(i) for i in range(len(dims))])


def _apply(model: ir.Model, edits: Sequence[tuple[ir.Node, Edit]], first: ir.Value, token: CancellationToken) -> None:
    """Put in the place of operands that hold the size of the batch what holds for any."""
    nodes = Insertion(model, first, token)
    needs_size = any(edit.sizes is None or None in edit.sizes for _, edit in edits)
    batch: ir.Value | None = None
    if needs_size:
        zero = nodes.constant(ir.tensor([0], dtype=ir.DataType.INT64), "first")
        batch = nodes.node("Gather", [nodes.node("Shape", [first], {}), zero], {"axis": 0}, "batch")
        nodes.finish([], batch)
    for node, edit in edits:
        value = node.inputs[edit.index]
        assert value is not None
        if edit.sizes is not None:
            result = _sizes(nodes, edit.sizes, batch)
        else:
            zero = nodes.constant(ir.tensor([0], dtype=ir.DataType.INT64), "first")
            row = nodes.node("Gather", [value, zero], {"axis": edit.axis}, "row")
            sizes = (*(1,) * edit.axis, None, *(1,) * edit.behind)
            result = nodes.node("Expand", [row, _sizes(nodes, sizes, batch)], {})
        nodes.finish([(node, edit.index)], result, before=node)


def _sizes(nodes: Insertion, sizes: Sequence[int | None], batch: ir.Value | None) -> ir.Value:
    """A list of sizes, with that of the batch where there is None."""
    parts: list[ir.Value] = []
    for is_batch, group in itertools.groupby(sizes, lambda size: size is None):
        if is_batch:
            assert batch is not None
            parts.append(batch)
        else:
            numbers = np.array(list(group), np.int64)
            parts.append(nodes.constant(ir.tensor(numbers), "sizes"))
    return parts[0] if len(parts) == 1 else nodes.node("Concat", parts, {"axis": 0}, "sizes")
