"""A softmax over an axis with several behind it makes ONNX Runtime swap axes element by element.

Its CPU kernel brings the axis to the end, and back. With one axis behind it that is a transposition of matrices, which
is fast; with several, as over the channels of an image, it is not. With the axes
merged, nothing else changes: the elements keep their places in memory, and each sum its order.
"""

from __future__ import annotations

import math

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import facts, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, dims, inputs, need, opset
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM = Form("", "Softmax", "of merged axes")

ALLOWZERO_FROM = 14
"""The version of Reshape with ``allowzero``."""


class Found(Struct, frozen=True):
    """The softmax, its axis, and the dimensions behind it."""

    nodes: tuple[ir.Node, ...]
    place: int
    behind: tuple[Dim, ...]


class SoftmaxAxisCanonicalization(RewriteRule[Found]):
    """``Softmax(x, axis)`` with several axes behind → ``Reshape(Softmax(Reshape(x)))`` with these as one.

    For few elements, two Reshapes cost what they save.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("LogSoftmax", "Softmax")
    opsets = (13, NEWEST_OPSET)  # before, all axes from the given one on are normalized together
    providers = (CPU,)
    weighs = (FORM,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """Enough elements, and dimensions that Reshape can be told."""
        (x,) = inputs(root, 1)
        shape = dims(x)
        place = ops.Softmax(root).axis
        behind = shape[place + 1 :]
        need(len(behind) > 1, "no several axes are behind the axis", root)
        known = [dim for dim in shape if isinstance(dim, int)]
        check_faster(root, FORM, elements=math.prod(known) if len(known) == len(shape) else None)
        if not all(isinstance(dim, int) for dim in behind):
            need(opset(root) >= ALLOWZERO_FROM, "Reshape cannot be told a dimension of 0", root)
            _check_positive(root, shape[: place + 1])
        return Found((root,), place, behind)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the Reshapes; where more than one merged dimension is open, the last one asks the input's shape."""
        root = found.nodes[0]
        x = root.inputs[0]
        kept = [0] * (found.place + 1)
        numbers = [dim for dim in found.behind if isinstance(dim, int)]
        open_ = len(found.behind) - len(numbers)
        is_fixed = not open_
        merged = ir.node("Reshape", [x, constant([*kept, math.prod(numbers) if is_fixed else -1])]).outputs[0]
        softmax = ir.node(root.op_type, [merged], {"axis": found.place}).outputs[0]
        if is_fixed:
            return ir.node("Reshape", [softmax, constant([*kept, *numbers])]).outputs[0]
        if open_ == 1 and all(numbers):  # the dimensions before are positive, or nothing was found
            split = [dim if isinstance(dim, int) else -1 for dim in found.behind]
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
