"""Where the batch is in every value of a graph, proven op by op; and which constants hold its size.

The batch is one axis of a value, or what an axis begins with that a Reshape has made of it and of axes behind it. An op
is known to work for any size if it treats the rows of the batch one by one. What is a constant there, as the target of
a Reshape, is proven to be the batch by the places of elements: as many of them lie before it and behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.cancellation import CancellationToken
from ortopt.graph import scope
from ortopt.graph.facts import all_contents
from ortopt.graph.match import Refusal, attribute, dims, inputs, need, opset, optional, rank
from ortopt.semantics import constant_tensor, subgraphs
from ortopt.semantics.op_traits import BROADCASTING, BROADCASTING_ONE_WAY, REDUCTIONS, UNARY, UNARY_WITH_PARAMETERS

_OF_SAMPLES: Final = frozenset(
    {"AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "GlobalAveragePool"}
    | {"GlobalLpPool", "GlobalMaxPool", "GridSample", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool"}
    | {"MaxPool", "QLinearConv", "SpaceToDepth"}
)
"""Ops of samples: the first axis of their operands and results is the batch, whatever is done behind it."""

_ALONG_AN_AXIS: Final = frozenset(
    {"CumSum", "Hardmax", "LogSoftmax", "LpNormalization", "Softmax", "TopK", "ArgMax", "ArgMin"}
)
_NORMALIZING_THE_END: Final = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_RECURRENT: Final = frozenset({"GRU", "LSTM", "RNN"})
_QUANTIZING: Final = frozenset({"DequantizeLinear", "QuantizeLinear"})


class Edit(Struct, frozen=True):
    """An operand that holds the size of the batch, and what takes its place.

    Attributes:
        node: The node.
        index: Which of its operands.
        sizes: The list of sizes that it is from now on, None for the batch; None where it is repeated instead.
        axis: The axis along which its only row is repeated for each of the batch.
        behind: How many axes are behind that one.
    """

    node: ir.Node
    index: int
    sizes: tuple[int | None, ...] | None
    axis: int = 0
    behind: int = 0


class BatchPlaces:
    """The places of the batch in a graph.

    Args:
        graph: The main graph of a model in which all has been inferred.
        size: The size of the batch in it.
        first: The inputs whose first axis is the batch.
        token: Cancellation token.

    Attributes:
        graph: The graph.
        size: The size of the batch in it.
        of: The axis by value; values that do not depend on the batch are missing.
        edits: What holds its size.

    Raises:
        Refusal: If a node is not known to work for any size, with the reason; `about` begins with the node.
    """

    def __init__(self, graph: ir.Graph, size: int, first: Iterable[ir.Value], token: CancellationToken) -> None:
        self.size = size
        self.graph = graph
        self.of: dict[ir.Value, int] = dict.fromkeys(first, 0)
        self.edits: list[Edit] = []
        for node in token.checked(graph):
            operands = [value for value in (*node.inputs, *scope.captured(node)) if value is not None]
            if self.of.keys().isdisjoint(operands):
                continue
            try:
                self._follow(node)
            except Refusal as refusal:
                raise Refusal(refusal.reason, node, *refusal.about, code=refusal.code) from refusal

    def _follow(self, node: ir.Node) -> None:
        rule = _RULES.get(node.op_type)
        if node.domain or any(True for _ in subgraphs(node)) or rule is None:
            raise Refusal("it is not known to treat the rows of a batch one by one")
        places = rule(self, node)
        if isinstance(places, int):
            places = [places] * len(node.outputs)
        for value, place in zip(node.outputs, places, strict=False):
            if place is not None:
                sizes = dims(value)
                need(isinstance(sizes[place], int) and sizes[place] % self.size == 0, "the batch is not all of an axis")
                self.of[value] = place

    def place(self, value: ir.Value | None) -> int | None:
        """The axis of the batch in a value."""
        return None if value is None else self.of.get(value)

    def factor(self, value: ir.Value) -> int:
        """How many positions along its axis belong to each row of the batch."""
        dim = dims(value)[self.of[value]]
        assert isinstance(dim, int)
        return dim // self.size

    def only(self, node: ir.Node, *allowed: int) -> int:
        """The axis in the first operand, which must depend on the batch, and of the others only those allowed."""
        place = self.place(inputs(node, 1)[0])
        need(place is not None, "its first operand does not depend on the batch, another does")
        for index, value in enumerate(node.inputs[1:], 1):
            need(index in allowed or self.place(value) is None, "an operand other than the first depends on the batch")
        assert place is not None
        return place

    def repeat(self, node: ir.Node, index: int, axis: int) -> None:
        """Let an operand that has the rows of the batch as constants be repeated for any of it.

        Raises:
            Refusal: If its rows differ.
        """
        value = node.inputs[index]
        assert value is not None
        need(dims(value)[axis] == self.size, "an operand has other rows than the batch", value)
        alike = self.size == 1 or _has_equal_rows(value, axis)
        need(alike, "a constant has a row of its own for each of the batch", value)
        self.edits.append(Edit(node, index, None, axis, rank(value) - axis - 1))


Rule = Callable[[BatchPlaces, ir.Node], "int | Sequence[int | None]"]


def _has_equal_rows(value: ir.Value, axis: int) -> bool:
    """Whether all rows along an axis are the same."""
    tensor = constant_tensor(value)
    if tensor is not None:
        rows = np.moveaxis(tensor.numpy(), axis, 0)
        return bool((rows == rows[:1]).all())
    node = value.producer()
    if node is None or node.domain or node.op_type != "Expand":
        return False
    before = dims(inputs(node, 1)[0])
    position = axis - rank(value) + len(before)
    return position < 0 or before[position] == 1


def _elementwise(places: BatchPlaces, node: ir.Node) -> int:
    """Operands that broadcast: the axis counts from the end."""
    size = rank(node.outputs[0])
    ends = {places.of[value] - rank(value) for value in node.inputs if value is not None and value in places.of}
    need(len(ends) == 1, "it has the batch along several axes")
    (end,) = ends
    factors = {places.factor(value) for value in node.inputs if value is not None and value in places.of}
    need(len(factors) == 1, "it has other rows of the batch in each operand")
    for index, value in enumerate(node.inputs):
        if value is None or value in places.of:
            continue
        own = dims(value)
        if len(own) + end >= 0 and own[end] != 1:
            need(factors == {1}, "an operand has other rows than the batch", value)
            places.repeat(node, index, len(own) + end)
    return size + end


def _first_only(places: BatchPlaces, node: ir.Node) -> int:
    return places.only(node)


def _sample(places: BatchPlaces, node: ir.Node) -> int:
    place = places.only(node, *((1,) if node.op_type == "GridSample" else ()))
    if node.op_type == "GridSample":
        need(places.place(node.inputs[1]) == 0, "images and their grids are not both of the batch")
    need(place == 0 and places.factor(inputs(node, 1)[0]) == 1, "it takes the batch for something else")
    need(attribute(node, "training_mode", 0) == 0, "it normalizes over the batch")
    need(len([value for value in node.outputs if value.uses()]) <= 1, "it gives more than its result")
    return 0


def _quantizing(places: BatchPlaces, node: ir.Node) -> int:
    place = places.only(node)
    scale = inputs(node, 2)[1]
    need(rank(scale) == 0 or dims(scale) == (1,) or ops.OneAxis(node).axis != place, "the batch has scales of its own")
    need(rank(scale) < 2, "it is quantized in blocks")
    return place


def _matmul(places: BatchPlaces, node: ir.Node) -> int:
    a, b = inputs(node, 2)
    left, right = places.place(a), places.place(b)
    size = rank(node.outputs[0])
    need(rank(a) >= 2 and rank(b) >= 2, "it multiplies vectors")
    need(left != rank(a) - 1 and right != rank(b) - 2, "it adds up over the batch")
    if right is not None and right == rank(b) - 1:
        need(left is None, "it has the batch along several axes")
        return size - 1
    if left is not None and left == rank(a) - 2:
        need(right is None, "it has the batch along several axes")
        return size - 2
    for value, other, place in ((a, b, right), (b, a, left)):
        if place is not None and places.place(value) is None:
            end = place - rank(other)
            need(rank(value) + end < 0 or dims(value)[end] == 1, "an operand has other rows than the batch", value)
    ends = {place - rank(value) for value, place in ((a, left), (b, right)) if place is not None}
    need(len(ends) == 1, "it has the batch along several axes")
    need(left is None or right is None or places.factor(a) == places.factor(b), "it has other rows in each operand")
    return size + ends.pop()


def _gemm(places: BatchPlaces, node: ir.Node) -> int:
    gemm, place = ops.Gemm(node), places.only(node, 2)
    need(place == int(gemm.transposes_a), "it adds up over the batch")
    added = optional(node, 2)
    if added is not None and places.place(added) is None:
        need(rank(added) < 2 or dims(added)[0] == 1, "an operand has other rows than the batch", added)
    elif added is not None:
        need(places.of[added] - rank(added) == -2, "it has the batch along several axes")
    return 0


def _transpose(places: BatchPlaces, node: ir.Node) -> int:
    return ops.Transpose(node).order.index(places.only(node))


def _squeeze(places: BatchPlaces, node: ir.Node) -> int:
    place, (x,) = places.only(node), inputs(node, 1)
    has_axes = "axes" in node.attributes or optional(node, 1) is not None
    axes = ops.Squeeze(node).axes if has_axes else tuple(i for i, dim in enumerate(dims(x)) if dim == 1)
    need(place not in axes, "it removes the axis of the batch")
    return place - sum(axis < place for axis in axes)


def _unsqueeze(places: BatchPlaces, node: ir.Node) -> int:
    place, axes = places.only(node), set(ops.Unsqueeze(node).axes)
    kept = [axis for axis in range(rank(node.outputs[0])) if axis not in axes]
    return kept[place]


def _flatten(places: BatchPlaces, node: ir.Node) -> int:
    (x,), place = inputs(node, 1), places.only(node)
    axis = ops.Flatten(node).axis
    before = dims(x)[:place] if place < axis else dims(x)[axis:place]
    need(math.prod(dim if isinstance(dim, int) else 0 for dim in before) == 1, "it mixes the batch with axes before it")
    return int(place >= axis)


def _reshape(places: BatchPlaces, node: ir.Node) -> int:
    """The place where as many elements lie before and behind as in the operand; a number there becomes the batch."""
    x, target = inputs(node, 2)
    place, known = places.only(node), all_contents(target)
    need(known is not None and all(isinstance(size, int) for size in known), "it has a target that is computed", target)
    assert known is not None
    stated = [int(size) for size in known]  # type: ignore[arg-type]
    after = dims(node.outputs[0], len(stated))
    number, size = places.factor(x), places.size
    candidates = []
    for position, dim in enumerate(after):
        if not isinstance(dim, int) or dim % size:
            continue
        factor = dim // size
        same_before = _product(after[:position]) == _product(dims(x)[:place])
        behind, own_behind = _product(after[position + 1 :]), _product(dims(x)[place + 1 :])
        same_behind = _times(behind, factor) == _times(own_behind, number)
        if same_before and same_behind:
            candidates.append((factor != 1, factor != number, stated[position] != -1, position))
    need(bool(candidates), "it mixes the batch with other axes")
    position = min(candidates)[-1]
    if stated[position] == -1 or (stated[position] == 0 and position == place and number == 1):
        return position
    sizes = [dim if asked == -1 else asked for asked, dim in zip(stated, after, strict=True)]
    numbers = [dim for dim in sizes if isinstance(dim, int)]
    if len(numbers) == len(sizes):
        numbers[position] = -1
    else:
        allows_zero = attribute(node, "allowzero", 0)
        need(position == place and not allows_zero and after[position] == dims(x)[place], "two sizes are not known")
        numbers = [0 if at == position else size for at, size in enumerate(stated)]
    places.edits.append(Edit(node, 1, tuple(numbers)))
    return position


Product = tuple[int, tuple[str, ...]]


def _product(sizes: Iterable[object]) -> Product:
    """A product of sizes: of the numbers, and of the names of others."""
    sizes = list(sizes)
    names = tuple(sorted(str(size) for size in sizes if not isinstance(size, int)))
    return math.prod(size for size in sizes if isinstance(size, int)), names


def _times(product: Product, number: int) -> Product:
    return product[0] * number, product[1]


def _expand(places: BatchPlaces, node: ir.Node) -> int:
    x, target = inputs(node, 2)
    place = places.only(node)
    end = place - rank(x)
    known = all_contents(target)
    need(known is not None and all(isinstance(size, int) for size in known), "it has a target that is computed", target)
    assert known is not None
    asked = known[end] if len(known) + end >= 0 else 1
    need(asked in (1, dims(x)[place]), "it repeats the batch", target)
    if asked != 1:
        sizes = [int(size) for size in known]  # type: ignore[arg-type]
        sizes[end] = 1
        places.edits.append(Edit(node, 1, tuple(sizes)))
    return rank(node.outputs[0]) + end


def _concat(places: BatchPlaces, node: ir.Node) -> int:
    axis = ops.Concat(node).axis
    found = {place for value in node.inputs if (place := places.place(value)) is not None}
    need(len(found) == 1, "it has the batch along several axes")
    (place,) = found
    need(place != axis, "it puts something beside the rows of the batch")
    factors = {places.factor(value) for value in node.inputs if value is not None and value in places.of}
    need(len(factors) == 1, "it has other rows of the batch in each operand")
    for index, value in enumerate(node.inputs):
        if places.place(value) is None:
            need(factors == {1}, "an operand has other rows than the batch", value)
            places.repeat(node, index, place)
    return place


def _split(places: BatchPlaces, node: ir.Node) -> int:
    place = places.only(node)
    need(ops.Split(node).axis != place, "it takes the batch apart")
    return place


def _slice(places: BatchPlaces, node: ir.Node) -> int:
    place = places.only(node)
    need(place not in ops.Slice(node).axes, "it takes some rows of the batch")
    return place


def _gather(places: BatchPlaces, node: ir.Node) -> int:
    x, indices = inputs(node, 2)
    axis, place, of_indices = ops.Gather(node).axis, places.place(x), places.place(indices)
    if place is None:
        assert of_indices is not None
        return axis + of_indices
    need(of_indices is None, "it takes rows of the batch by indices of the batch")
    need(place != axis, "it takes some rows of the batch")
    return place if place < axis else place + rank(indices) - 1


def _reduction(places: BatchPlaces, node: ir.Node) -> int:
    place, reduction = places.only(node), ops.Reduce(node)
    axes = () if reduction.does_nothing else reduction.axes
    need(place not in axes, "it makes one row of the batch")
    return place if reduction.keeps_axes else place - sum(axis < place for axis in axes)


def _along_an_axis(places: BatchPlaces, node: ir.Node) -> int:
    place, (x,) = places.only(node), inputs(node, 1)
    if node.op_type == "CumSum":
        known = all_contents(inputs(node, 2)[1])
        need(known is not None and len(known) == 1 and isinstance(known[0], int), "its axis is computed")
        axis = int(known[0]) % rank(x)  # type: ignore[index, arg-type]
    else:
        axis = ops.OneAxis(node).axis
    flattens = node.op_type in ("Hardmax", "LogSoftmax", "Softmax") and opset(node) < _ONE_AXIS
    need(place < axis if flattens else place != axis, "it goes along the batch")
    dropped = node.op_type in ("ArgMax", "ArgMin") and not ops.Reduce(node).keeps_axes
    return place - (dropped and axis < place)


_ONE_AXIS: Final = 13
"""The first opset whose Softmax goes along one axis."""


def _normalizing_the_end(places: BatchPlaces, node: ir.Node) -> int:
    place = places.only(node)
    need(place < ops.OneAxis(node).axis, "it normalizes over the batch")
    return place


def _pad(places: BatchPlaces, node: ir.Node) -> int:
    place, amounts = places.only(node), ops.Pad(node).amounts
    need(not amounts[place] and not amounts[len(amounts) // 2 + place], "it pads the batch")
    return place


def _tile(places: BatchPlaces, node: ir.Node) -> int:
    place, repeats = places.only(node), all_contents(inputs(node, 2)[1])
    need(repeats is not None and repeats[place] == 1, "it repeats the batch")
    return place


def _trilu(places: BatchPlaces, node: ir.Node) -> int:
    place = places.only(node)
    need(place < rank(inputs(node, 1)[0]) - 2, "it takes the batch for rows of a matrix")
    return place


def _resize(places: BatchPlaces, node: ir.Node) -> int:
    (x,), place = inputs(node, 1), places.only(node)
    axes = ops.Resize(node).axes
    if place not in axes:
        return place
    at = axes.index(place)
    need(dims(node.outputs[0])[place] == dims(x)[place], "it resizes the batch")
    sizes = optional(node, 3)
    if sizes is None:
        scales = optional(node, 2) if len(node.inputs) > 2 else optional(node, 1)
        tensor = None if scales is None else constant_tensor(scales)
        need(tensor is not None and float(tensor.numpy()[at]) == 1.0, "the scale of the batch is not known")
        return place
    known = all_contents(sizes)
    need(known is not None and all(isinstance(size, int) for size in known), "its sizes are computed", sizes)
    need(places.factor(x) == 1, "it has several positions for each row of the batch")
    asked = tuple(None if i == at else int(size) for i, size in enumerate(known or ()))  # type: ignore[arg-type]
    places.edits.append(Edit(node, 3, asked))
    return place


def _recurrent(places: BatchPlaces, node: ir.Node) -> list[int | None]:
    place = places.only(node, 5, 6)
    need(attribute(node, "layout", 0) == 0 and place == 1, "it takes the batch for something else")
    need(places.factor(inputs(node, 1)[0]) == 1, "it has several positions for each row of the batch")
    need(optional(node, 4) is None, "it has lengths of sequences")
    for index in (5, 6):
        state = optional(node, index)
        if state is not None and places.place(state) is None:
            places.repeat(node, index, 1)
        need(state is None or places.place(state) in (None, 1), "a state has the batch along another axis")
    return [2, 1, 1]


def _one_hot(places: BatchPlaces, node: ir.Node) -> int:
    place, axis = places.only(node), ops.OneAxis(node).axis
    return place if place < axis else place + 1


def _sizes(_: BatchPlaces, node: ir.Node) -> list[int | None]:
    """A Shape: what reads its numbers is asked where it does."""
    known = all_contents(node.outputs[0])
    need(known is not None and all(isinstance(size, int) for size in known), "it gives sizes that are not known")
    return [None]


_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(BROADCASTING | BROADCASTING_ONE_WAY, _elementwise),
    **dict.fromkeys(UNARY | UNARY_WITH_PARAMETERS, _first_only),
    **dict.fromkeys(_OF_SAMPLES, _sample),
    **dict.fromkeys(_QUANTIZING, _quantizing),
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(_ALONG_AN_AXIS, _along_an_axis),
    **dict.fromkeys(_NORMALIZING_THE_END, _normalizing_the_end),
    **dict.fromkeys(_RECURRENT, _recurrent),
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _sizes,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
