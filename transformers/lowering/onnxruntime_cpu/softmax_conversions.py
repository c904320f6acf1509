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
    dims,
    inputs,
    is_never_zero,
    is_op,
    need,
    need_float32,
    opset,
    producer,
    users,
)
from ortopt.options import Numerics
from ortopt.patterns.attention import mask
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.domains import MICROSOFT
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
        allowed = scope.of(scope.graph_of(root)).options.bounded_error
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
    share, held = (constant(np.array(number, np.float32)) for number in (SHARE, HELD))
    largest = ops.node_along("ReduceMax", scores, [axis], version)
    size = ir.node("Abs", largest.outputs)
    distance = ir.node("Max", [ir.node("Mul", [size.outputs[0], share]).outputs[0], held])
    least = ir.node("Sub", [largest.outputs[0], distance.outputs[0]])
    return ir.node("Softmax", ir.node("Max", [scores, least.outputs[0]]).outputs, {"axis": axis})


def _multiplies(node: ir.Node) -> bool:
    """Whether a node only sums up products with what it reads."""
    return any(is_op(node, op, domain=domain) for domain, op in PRODUCTS)


MERGED_AXES = Form("", "Softmax", "of merged axes")

ALLOWZERO_FROM = 14
"""The version of Reshape with ``allowzero``."""


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
            need(opset(root) >= ALLOWZERO_FROM, "Reshape cannot be told a dimension of 0", root)
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
