"""Softmaxes whose kernel is slow for some of their numbers, or along their axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.error_bounds import check_bound
from ortopt.framework.fusions import check_faster, preferred
from ortopt.graph import facts, scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Code,
    Dim,
    Refusal,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    need,
    need_float32,
    opset,
    optional,
    producer,
    users,
)
from ortopt.options import Numerics
from ortopt.patterns.attention import mask
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import PADS_ARE_AN_INPUT_FROM, RESHAPE_ALLOWS_ZERO_FROM
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule

HELD_SCORES = Form("", "Softmax", "of held scores")
DISTANCE = 80.0
"""How far below the largest of its row a score may be: e⁻⁸⁰ divided by a sum of thousands has all its digits."""

HELD, SHARE = DISTANCE + 1, 2.0**-16
"""How far below the largest scores are held: by the number, or by a share of a largest one of millions, which would
swallow the number. Up to there, rounding takes a quarter of it at most."""

DEEP = 50.0
"""From where on an element of a mask makes denormal numbers of ordinary scores."""

LONGEST = 2**63
"""No row has more elements."""

PRODUCTS = (("", "MatMul"), (MICROSOFT, "FusedMatMul"))


class MaskedSoftmaxConversion(CpuRule[Match]):
    """``Softmax(y)`` → ``Softmax(Max(y, m - Max(81, |m| / 2¹⁶)))``, ``y = x + mask``, ``m = ReduceMax(y)``.

    Exponentials of masked scores are too small for all digits of a float, which some processors compute slowly.

    What a mask takes below e⁻⁸⁷ of the largest is a denormal number, or 0. With the scores held at 80 below their
    largest, nothing is denormal.

    Rows that hold a NaN or are wholly at -inf stay as they are, to the bit. It is faster on an AVX-512 Xeon, and slower
    on an EPYC, which has no trouble with such numbers: so it is taken with ``--fusions all``, or where a table of costs
    says that it pays.
    """

    roots = ("Softmax",)
    weighs = (HELD_SCORES,)
    opsets = (13, NEWEST_OPSET)  # before, all axes from the given one on are normalized together
    looks_downstream = True
    numerics = Numerics.BOUNDED
    error_bound = "1.8e-35 for each probability"

    def match(self, root: ir.Node) -> Match:
        """A mask that goes deep, and probabilities that are only multiplied."""
        (scores,) = inputs(root, 1)
        need_float32(scores)
        preferred(root, [HELD_SCORES])
        added = producer(scores, "Add", "Sum").inputs
        depths = [mask.bound(value) for value in added]
        need(any(depth is not None and depth >= DEEP for depth in depths), "no mask that goes deep is added", scores)
        exact = any(depth == math.inf for depth in depths)
        allowed = scope.of_node(root).options.bounded_error
        need(
            allowed or not exact,
            "the mask holds -inf, for an exact 0; --bounded-error takes it anyway",
            scores,
            code=Code.OPTION,
        )
        need(all(map(_multiplies, users(root.outputs[0]))), "a probability of 0 may decide something", root)
        need(not root.outputs[0].is_graph_output(), "the probabilities are a result", root)
        place = ops.Softmax(root).axis
        need(is_never_zero(dims(scores)[place], root), "of no scores there is no largest", scores)
        check_bound(root, math.exp(-DISTANCE), LONGEST)
        return Match((root,), lambda: _held(scores, place, opset(root)))


def _held(scores: ir.Value, axis: int, version: int) -> ir.Node:
    """Hold the scores, and take their Softmax."""
    largest = ops.node_along("ReduceMax", scores, [axis], version)
    held = ir.node("Max", [scores, _below(largest.outputs[0], HELD)])
    return ir.node("Softmax", held.outputs, {"axis": axis})


def _below(largest: ir.Value, room: float) -> ir.Value:
    """What is so far below a largest number, or by the share of it that rounding leaves."""
    share, least = (constant(np.array(number, np.float32)) for number in (SHARE, room))
    size = ir.node("Abs", [largest])
    distance = ir.node("Max", [ir.node("Mul", [size.outputs[0], share]).outputs[0], least])
    return ir.node("Sub", [largest, distance.outputs[0]]).outputs[0]


def _multiplies(node: ir.Node) -> bool:
    """Whether a node only sums up products with what it reads."""
    return any(is_op(node, op, domain=domain) for domain, op in PRODUCTS)


ROOM = 64.0
"""How far below the largest of its row an element of a mask stays: e⁻⁶⁴ is 1.6e-28, and not denormal for scores that
are 23 below the largest."""

BIASES = {("", "Attention"): 3, (MICROSOFT, "Attention"): 5, (MICROSOFT, "MultiHeadAttention"): 5}
"""Where attention ops have the mask that they add."""

OTHER_MASKS = {("", "Attention"): 6, (MICROSOFT, "Attention"): 3, (MICROSOFT, "MultiHeadAttention"): 4}
"""Where they have another mask, or the number of keys, by which the largest of a row may not count."""


class AttentionMaskConversion(CpuRule[Match]):
    """``Attention(q, k, v, mask)`` → the same of ``Max(mask, m - Max(64, |m| / 2¹⁶))``, ``m = ReduceMax(mask)``.

    A masked key gets e⁻⁶⁴ of what its score gives, instead of 0 or a number that some processors compute slowly.

    Exponentials of what a mask takes below e⁻⁸⁷ make the kernel slow. The floor is computed once for all layers, and
    ahead where the mask is constant. Its row's largest element decides, so rows that are masked as a whole stay.

    A masked key counts e^(d - 64) of the best key that is let pass, where its score is d above that one's: below
    rounding up to d = 40. No norm of weights proves this of trained ones: so the pass approximates, and runs only where
    it is asked for by name.
    """

    after = ("constant_folding",)
    roots = ("Attention", "com.microsoft::Attention", "com.microsoft::MultiHeadAttention")
    enabled = False
    numerics = Numerics.APPROXIMATE

    def match(self, root: ir.Node) -> Match:
        """A mask that goes deep, and is all that says which keys count."""
        identifier = (root.domain, root.op_type)
        bias = optional(root, BIASES[identifier])
        need(bias is not None, "no mask is added", root)
        assert bias is not None
        need_float32(bias)
        causal = any(attribute(root, name, 0) for name in ("is_causal", "unidirectional"))
        need(not causal and optional(root, OTHER_MASKS[identifier]) is None, "another mask decides, too", root)
        depth = mask.bound(bias)
        need(depth is None or depth >= DEEP, "no mask that goes deep is added", bias)
        need(not _has_floor(bias), "the mask has a floor", bias)
        need(opset(root, "") >= PADS_ARE_AN_INPUT_FROM["Pad"], "Pad takes no values", root)
        filled = is_never_zero(dims(bias)[-1], root)

        def build() -> dict[ir.Value, ir.Value]:
            floored = _with_floor(bias, opset(root, ""), filled=filled)
            place = BIASES[identifier]
            operands = [*root.inputs[:place], floored, *root.inputs[place + 1 :]]
            count = len(root.outputs)
            node = ir.Node(root.domain, root.op_type, operands, root.attributes.values(), num_outputs=count)
            return {was: now for was, now in zip(root.outputs, node.outputs, strict=True) if was.name}

        return Match((root,), build)


def _with_floor(value: ir.Value, version: int, *, filled: bool) -> ir.Value:
    """A mask none of whose elements is further below the largest of its row than it needs; of no keys that is -inf."""
    last, row = len(dims(value)) - 1, value
    if not filled:
        pads = constant([0] * (2 * last + 1) + [1])
        row = ir.node("Pad", [value, pads, constant(np.array(-np.inf, np.float32))]).outputs[0]
    largest = ops.node_along("ReduceMax", row, [last], version)
    least = _below(largest.outputs[0], ROOM)
    return ir.node("Max", [value, least]).outputs[0]


def _has_floor(value: ir.Value) -> bool:
    """Whether a mask has one: in a constant, no element is further below the largest of its row."""
    if is_constant(value):
        content = array_of(value)
        largest = content.max(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore", over="ignore"):
            return not bool((content < largest - np.maximum(np.abs(largest) * np.float32(SHARE), ROOM)).any())
    node = value.producer()
    least = node.inputs[-1] if is_op(node, "Max") and node is not None else None
    below = least.producer() if least is not None else None
    largest = below.inputs[0] if is_op(below, "Sub") and below is not None else None
    return largest is not None and is_op(largest.producer(), "ReduceMax")


MERGED_AXES = Form("", "Softmax", "of merged axes")


class SoftmaxAxisCanonicalization(CpuRule[Match]):
    """``Softmax(x, axis)`` with several axes behind → ``Reshape(Softmax(Reshape(x)))`` with these as one.

    A softmax over an axis with several behind it makes ONNX Runtime swap axes element by element.

    Its CPU kernel brings the axis to the end, and back. With one axis behind it that is a transposition of matrices,
    which is fast; with several, as over the channels of an image, it is not. With the axes merged, nothing else
    changes: the elements keep their places in memory, and each sum its order.

    For few elements, two Reshapes cost what they save.
    """

    roots = ("LogSoftmax", "Softmax")
    opsets = (13, NEWEST_OPSET)  # before, all axes from the given one on are normalized together
    weighs = (MERGED_AXES,)

    def match(self, root: ir.Node) -> Match:
        """Enough elements, and dimensions that Reshape can be told."""
        (x,) = inputs(root, 1)
        shape = dims(x)
        place = ops.Softmax(root).axis
        behind = shape[place + 1 :]
        need(len(behind) > 1, "no several axes are behind the axis", root)
        known = [dim for dim in shape if isinstance(dim, int)]
        check_faster(root, MERGED_AXES, elements=math.prod(known) if len(known) == len(shape) else None)
        if not all(isinstance(dim, int) for dim in behind):
            need(opset(root) >= RESHAPE_ALLOWS_ZERO_FROM, "Reshape cannot be told a dimension of 0", root)
            _check_positive(root, shape[: place + 1])
        return Match((root,), lambda: _of_merged(root, place, behind))


def _of_merged(root: ir.Node, place: int, behind: Sequence[Dim]) -> ir.Value:
    """Build the Reshapes; where more than one merged dimension is open, the last one asks the input's shape."""
    x = root.inputs[0]
    kept = [0] * (place + 1)
    split = [dim if isinstance(dim, int) else -1 for dim in behind]
    open_ = split.count(-1)
    merged = ir.node("Reshape", [x, constant([*kept, -1 if open_ else math.prod(split)])]).outputs[0]
    softmax = ir.node(root.op_type, [merged], {"axis": place}).outputs[0]
    if not open_ or (open_ == 1 and 0 not in split):  # the dimensions before are positive, or nothing was found
        return ir.node("Reshape", [softmax, constant([*kept, *split])]).outputs[0]
    shape = ir.node("Shape", [x]).outputs[0]
    return ir.node("Reshape", [softmax, shape], {"allowzero": 1}).outputs[0]  # a 0 is no dimension to copy


def _check_positive(root: ir.Node, leading: tuple[Dim, ...]) -> None:
    """Refuse where a dimension that is kept may be 0: no -1 can be inferred beside it."""
    graph = root.graph
    positive = graph.meta.get(facts.POSITIVE) or () if isinstance(graph, ir.Graph) else ()
    for dim in leading:
        if not symbolic.is_positive(dim, positive):
            raise Refusal("a dimension before the merged ones may be 0", root)
