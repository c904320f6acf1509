"""Exponentials of masked scores are too small for all digits of a float, which some processors compute slowly.

What a mask takes below e⁻⁸⁷ of the largest is a denormal number, or 0. With the scores held at 80 below their largest,
nothing is denormal.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.error_bounds import check_bound
from ortopt.framework.fusions import preferred
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Code,
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
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.attention import mask
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.domains import MICROSOFT

FORM = Form("", "Softmax", "of held scores")
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


class Found(Struct, frozen=True):
    """The Softmax, the scores, and the axis."""

    nodes: tuple[ir.Node, ...]
    scores: ir.Value
    axis: int


class MaskedSoftmaxConversion(RewriteRule[Found]):
    """``Softmax(y)`` → ``Softmax(Max(y, m - Max(81, |m| / 2¹⁶)))``, ``y = x + mask``, ``m = ReduceMax(y)``.

    Rows that hold a NaN or are wholly at -inf stay as they are, to the bit. It is faster on an AVX-512 Xeon, and
    slower on an EPYC, which has no trouble with such numbers: so it is taken with ``--fusions all``, or
    where a table of costs says that it pays.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Softmax",)
    weighs = (FORM,)
    opsets = (13, NEWEST_OPSET)  # before, all axes from the given one on are normalized together
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.BOUNDED
    error_bound = "1.8e-35 for each probability"

    def match(self, root: ir.Node) -> Found:
        """A mask that goes deep, and probabilities that are only multiplied."""
        (scores,) = inputs(root, 1)
        need_float32(scores)
        preferred(root, [FORM])
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
        return Found((root,), scores, place)

    def rewrite(self, found: Found) -> ir.Node:
        """Hold the scores, and take their Softmax."""
        (old,) = found.nodes
        largest = ops.node_along("ReduceMax", found.scores, [found.axis], opset(old))
        size = ir.node("Abs", [largest.outputs[0]])
        share = ir.node("Mul", [size.outputs[0], constant(np.array(SHARE, np.float32))])
        distance = ir.node("Max", [share.outputs[0], constant(np.array(HELD, np.float32))])
        least = ir.node("Sub", [largest.outputs[0], distance.outputs[0]])
        held = ir.node("Max", [found.scores, least.outputs[0]])
        return ir.node("Softmax", [held.outputs[0]], {"axis": found.axis})


def _multiplies(node: ir.Node) -> bool:
    """Whether a node only sums up products with what it reads."""
    return any(is_op(node, op, domain=domain) for domain, op in PRODUCTS)
