"""A model in which past and present are one buffer.

The buffer of a pair has the axis along which it grows first: what holds the present is the front of it, without gaps,
for any batch. The input takes the front, for past and new rows; a ScatterND writes the new rows; its result, the
output, is bound to the same memory, so that ONNX Runtime's kernel copies nothing else. (Bound to other memory, it would
be right, and a copy.) Products read the buffer with strides, as FusedMatMul's batches that come second. What else reads
the present gets it through a Transpose, which is a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ortopt.errors import UsageError
from ortopt.graph.match import is_op
from ortopt.graph.refusal import Refusal, need
from ortopt.runtime.decoding.attention_parts import AttentionParts, NewNodes
from ortopt.runtime.decoding.cache_pairs import ATTENTION, CachePair, source
from ortopt.semantics import constant_tensor
from ortopt.semantics.domains import MICROSOFT
from ortopt.terminal_text import quoted

Tokens: TypeAlias = tuple[int | ir.SymbolicDim, ...]

_PRODUCTS: Final = {("", "MatMul"), (MICROSOFT, "FusedMatMul")}
_MULTIPLIED: Final = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})
_OLDEST_OPSET: Final = 12


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """A pair of a model in which past and present are one buffer.

    Attributes:
        past: The name of the input, which takes the front of the buffer, new rows included.
        present: The name of the output, which is bound to the same memory.
        axis: The axis along which the cache grows in the original model; it is the buffer's first.
        dtype: Of the elements.
        dims: The sizes of the original input.
        tokens: How many rows a call adds: dimensions that are broadcast to it, one as a rule; none where it is unknown.
        rows: The name of the input that takes the places of the new rows: pairs of position and place along the
            buffer's second axis, for each place, unless the axis is the first in the original, too.
        shape: The name of an input that takes the shape of the past, None if there is none.
    """

    past: str
    present: str
    axis: int
    dtype: ir.DataType
    dims: tuple[int | str | None, ...]
    tokens: Tokens
    rows: str
    shape: str | None


@dataclass(frozen=True, slots=True)
class SharedModel:
    """A model in which pasts and presents are one buffer each.

    Attributes:
        model: The model.
        buffers: The buffers.
        copied: The presents that something reads through a copy, with its op.
    """

    model: ir.Model
    buffers: tuple[SharedBuffer, ...]
    copied: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Turned:
    """A value as a Transpose of what lies in a buffer.

    Attributes:
        value: What lies in the buffer.
        order: The axes in the order of the value.
    """

    value: ir.Value
    order: tuple[int, ...]


class BufferSharing:
    """Lets the pasts and presents of a model be one buffer each.

    Args:
        model: The model, with shapes; it is changed.
        pairs: The pairs.
        tokens: For each pair, how many rows a call adds (`SharedBuffer.tokens`).
    """

    def __init__(self, model: ir.Model, pairs: Sequence[CachePair], tokens: Sequence[Tokens]) -> None:
        if model.opset_imports.get("", 0) < _OLDEST_OPSET:
            raise UsageError(f"a shared cache needs opset {_OLDEST_OPSET} or newer")
        self._model = model
        self._pairs = pairs
        self._tokens = tokens
        self._nodes = NewNodes(model)
        self._copied: dict[tuple[str, str], None] = {}
        self._rows: dict[int | str | None, ir.Value] = {}

    def apply(self) -> SharedModel:
        """Change the model.

        Raises:
            UsageError: A pair cannot be a buffer; the message has the reason.
        """
        attention = AttentionParts(self._nodes)
        names = [pair.present.name or "" for pair in self._pairs]
        for node in dict.fromkeys(pair.node for pair in self._pairs if pair.node.op_type != "Concat"):
            pasts = ", ".join(quoted(pair.past.name) for pair in self._pairs if pair.node is node)
            with _named(pasts):
                attention.take_apart(node)
        for node in self._readers():
            with contextlib.suppress(Refusal):  # it gets a copy, then
                attention.take_apart(node)
        buffers = []
        for pair, name, tokens in zip(self._pairs, names, self._tokens, strict=True):
            with _named(quoted(pair.past.name)):
                buffers.append(self._share(pair, name, tokens))
        RemoveUnusedNodesPass()(self._model)
        return SharedModel(self._model, tuple(buffers), tuple(self._copied))

    def _readers(self) -> list[ir.Node]:
        """Attention ops without a past that read a present, as it is or with other axes of one element."""
        readers: dict[ir.Node, None] = {}
        pending = [pair.node.outputs[0] for pair in self._pairs if pair.node.op_type == "Concat"]
        while pending:
            for node, position in pending.pop().uses():
                if node.domain == "" and node.op_type in ("Squeeze", "Unsqueeze", "Identity") and position == 0:
                    pending.append(node.outputs[0])
                elif (node.domain, node.op_type) in ATTENTION and position in (1, 2):
                    readers[node] = None
        return list(readers)

    def _share(self, pair: CachePair, name: str, tokens: Tokens) -> SharedBuffer:
        past, graph = pair.past, self._model.graph
        position = next(i for i, value in enumerate(graph.outputs) if value.name == name)
        made = source(graph.outputs[position])
        concat = made.producer()
        assert concat is not None
        assert concat.inputs[1] is not None
        assert past.shape is not None
        assert past.dtype is not None
        new, rank = concat.inputs[1], len(past.shape)
        dims = tuple(dim if isinstance(dim, int) else dim.value for dim in past.shape)
        front = [pair.axis, *(axis for axis in range(rank) if axis != pair.axis)]
        shape = self._shape_input(past, concat)
        rows = self._rows_input(dims, pair.axis)
        # New rows are written batch by batch, as they are computed: [batch, tokens, …].
        updates = self._nodes.transpose(concat, new, [*sorted(front[:2]), *front[2:]])
        written = self._nodes.add(concat, "ScatterND", [past, rows, updates], rank=rank)
        past.shape = written.shape = ir.Shape([None, *(past.shape[axis] for axis in front[1:])])
        order = tuple(front.index(axis) for axis in range(rank))
        old = graph.outputs[position]
        old.name, written.name = self._nodes.name("present"), name
        graph.outputs[position] = written
        self._read(made, _Turned(written, order), name)
        need(not (old.is_graph_output() or made.is_graph_output()), "it is more than one output")
        return SharedBuffer(past.name or "", name, pair.axis, past.dtype, dims, tokens, rows.name or "", shape)

    def _rows_input(self, dims: Sequence[int | str | None], axis: int) -> ir.Value:
        """The input that takes the places of new rows; one for all buffers with as many places."""
        key, width = (dims[0], 2) if axis else (-1, 1)
        if key is None or key not in self._rows:
            value = ir.Value(name=self._nodes.name("rows"), type=ir.TensorType(ir.DataType.INT64))
            value.shape = ir.Shape([None] * width + [width])
            self._model.graph.inputs.append(value)
            self._rows[key] = value
        return self._rows[key]

    def _shape_input(self, past: ir.Value, concat: ir.Node) -> str | None:
        """An input in the place of the past's Shapes, if there are any; refuses other uses of the past."""
        shape: ir.Value | None = None
        for value in _aliases(past):
            for node, _ in tuple(value.uses()):
                if (node is concat and concat.inputs[1] is not value) or source(node.outputs[0]) is past:
                    continue
                need(is_op(node, "Shape"), f"{node.op_type} uses the past, too")
                if shape is None:
                    rank = len(past.shape or ())
                    name = self._nodes.name("past_shape")
                    shape = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([rank]))
                    self._model.graph.inputs.append(shape)
                self._replace_shape(node, shape, range(len(past.shape or ())))
        return None if shape is None else shape.name

    def _replace_shape(self, node: ir.Node, shape: ir.Value, order: Sequence[int]) -> None:
        """Let a Shape be sizes of another shape."""
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(order))
        wanted = list(order)[start:end]
        if wanted != list(range(len(order))):
            shape = self._nodes.add(node, "Gather", [shape, self._nodes.constant(wanted)], {"axis": 0})
        self._nodes_use(node.outputs[0], shape)

    def _nodes_use(self, old: ir.Value, new: ir.Value) -> None:
        if old.is_graph_output():
            new = self._nodes.add(_producer(old), "Identity", [new])
            new.shape, name = old.shape, old.name
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name, new.name = self._nodes.name("replaced"), name
            return
        old.replace_all_uses_with(new)

    def _read(self, value: ir.Value, turned: _Turned, name: str) -> None:
        """Let all that reads a value read the buffer."""
        pending = [(value, turned)]
        while pending:
            value, turned = pending.pop()
            copy: ir.Value | None = None
            need(not value.is_graph_output(), "it is more than one output")
            for node, position in tuple(value.uses()):
                if self._reads_in_place(node, position, turned):
                    continue
                after = self._after(node, turned) if position == 0 else None
                if after is not None and not node.outputs[0].is_graph_output():
                    pending.append((node.outputs[0], after))
                    continue
                if copy is None:
                    first = next(user for user in self._model.graph if user in {each for each, _ in value.uses()})
                    copy = self._nodes.transpose(first, turned.value, turned.order)
                    copy.shape = value.shape
                self._copied[name, node.op_type] = None
                node.replace_input_with(position, copy)

    def _reads_in_place(self, node: ir.Node, position: int, turned: _Turned) -> bool:
        """Let a product or a Shape read the buffer without a copy, if it can."""
        if (node.domain, node.op_type) in _PRODUCTS:
            return self._multiply(node, position, turned)
        if node.domain or node.op_type != "Shape" or position:
            return False
        shape = self._nodes.add(node, "Shape", [turned.value], dtype=ir.DataType.INT64)
        self._replace_shape(node, shape, turned.order)
        return True

    def _after(self, node: ir.Node, turned: _Turned) -> _Turned | None:
        """What a node that only arranges axes makes; None of other nodes."""
        rank = len(turned.order)
        if node.domain or len(node.outputs) != 1:
            return None
        if node.op_type == "Identity" or (node.op_type == "Concat" and len(node.inputs) == 1):
            return turned
        if node.op_type == "Transpose":
            order = node.attributes.get_ints("perm", tuple(reversed(range(rank))))
            return _Turned(turned.value, tuple(turned.order[axis] for axis in order))
        if node.op_type not in ("Squeeze", "Unsqueeze"):
            return None
        axes = self._axes(node)
        if axes is None:
            return None
        if node.op_type == "Squeeze":
            return self._squeezed(node, turned, {axis % rank for axis in axes})
        return self._unsqueezed(node, turned, sorted(axis % (rank + len(axes)) for axis in axes))

    def _squeezed(self, node: ir.Node, turned: _Turned, axes: set[int]) -> _Turned | None:
        gone = sorted(turned.order[axis] for axis in axes)
        if 0 in gone:
            return None
        value = self._nodes.with_axes(node, "Squeeze", turned.value, gone)
        left = [axis for i, axis in enumerate(turned.order) if i not in axes]
        return _Turned(value, tuple(axis - sum(each < axis for each in gone) for axis in left))

    def _unsqueezed(self, node: ir.Node, turned: _Turned, axes: Sequence[int]) -> _Turned:
        """With new axes behind those that they follow, so that batches stay in order."""
        value, order = turned.value, list(turned.order)
        for axis in axes:
            place = order[axis - 1] + 1 if axis else 1
            value = self._nodes.with_axes(node, "Unsqueeze", value, [place])
            order = [each + (each >= place) for each in order]
            order.insert(axis, place)
        return _Turned(value, tuple(order))

    def _axes(self, node: ir.Node) -> list[int] | None:
        if len(node.inputs) > 1:
            tensor = constant_tensor(node.inputs[1])
            return None if tensor is None else [int(axis) for axis in tensor.numpy().reshape(-1)]
        return list(node.attributes.get_ints("axes", ())) or None

    def _multiply(self, node: ir.Node, position: int, turned: _Turned) -> bool:
        """Let a product read its second operand from the buffer, its batches second, its rows or columns first."""
        rank, attributes = len(turned.order), node.attributes
        left = node.inputs[0]
        batches = tuple(range(1, rank - 1))
        straight, swapped = (*batches, 0, rank - 1), (*batches, rank - 1, 0)
        if position != 1 or left is None or left.shape is None or len(left.shape) != rank or rank < 3:
            return False
        if turned.order not in (straight, swapped) or turned.value.dtype not in _MULTIPLIED:
            return False
        if attributes.get_int("transBatchB", 0) or source(left) is source(turned.value):
            return False
        made = self._nodes.add(
            node,
            "FusedMatMul",
            [left, turned.value],
            {
                "alpha": attributes.get_float("alpha", 1.0),
                "transA": attributes.get_int("transA", 0),
                "transB": attributes.get_int("transB", 0) ^ (turned.order == swapped),
                "transBatchA": attributes.get_int("transBatchA", 0),
                "transBatchB": 1,
            },
            domain=MICROSOFT,
            rank=rank,
        )
        self._nodes_use(node.outputs[0], made)
        return True


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Gives a refusal the name of what is refused."""
    try:
        yield
    except Refusal as refusal:
        raise UsageError(f"{name} cannot stay in one buffer: {refusal}") from refusal


def _aliases(value: ir.Value) -> list[ir.Value]:
    """A value, and what is the same behind nodes that change nothing."""
    same = [value]
    for one in same:
        same.extend(node.outputs[0] for node, _ in one.uses() if source(node.outputs[0]) is value)
    return same


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node
