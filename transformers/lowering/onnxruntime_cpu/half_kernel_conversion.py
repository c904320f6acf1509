"""Between ops that the CPU computes in single precision, a kernel of halves costs the way there and back.

The CPU has few kernels of float16: ONNX Runtime puts Casts around all other ops, and drops those between two of them.
The few that there are interrupt this, and convert inside; a Gelu without one is spelled out in six ops. Bounds of
halves that several Clips share stay behind one Cast, and are no constants for ONNX Runtime then: the Clips do not
become parts of the convolutions before them, and the blocked layout ends at each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU, Support, support
from ortopt.framework.fusions import preferred
from ortopt.graph import scope
from ortopt.graph.match import (
    FLOAT,
    FLOAT16,
    Refusal,
    array_of,
    before,
    dtype,
    is_constant,
    is_op,
    is_used,
    need,
    only_user,
    optional,
    producer,
    users,
)
from ortopt.options import Numerics
from ortopt.rule import Match
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule

FORM = "of halves as floats"
"""The variant of all these ops in the table of costs."""

PAST = 4
"""Which input of an Attention is the first of the cache."""

MASK = 3
"""Which input of an Attention is the mask."""

LAYOUT = ("Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")


class HalfKernelConversion(CpuRule[Match]):
    """``Gelu(h)`` of halves → ``Cast(Gelu(Cast(h)))``, computed in single precision.

    So for Attention without a cache, beside such ops, and for Clip behind a convolution. The numbers are rounded to
    halves less often.
    """

    roots = ("Attention", "Clip", "Gelu")
    weighs = tuple(Form("", op, FORM) for op in roots)
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """An op of halves beside one that the CPU has no kernel of halves for, and one that it has a kernel for."""
        need(dtype(root.outputs[0]) == FLOAT16, "its numbers are not halves", root)
        preferred(root, [Form("", root.op_type, FORM)])
        if root.op_type == "Attention":
            _check_attention(root)
        if root.op_type == "Clip":
            _check_clip(root)
        return Match((root,), lambda: _between_casts(root))


def _between_casts(root: ir.Node) -> ir.Node:
    """Build the op of floats between Casts."""
    op = ops.copied(root, [_single(value) for value in root.inputs])
    return ir.node("Cast", [op.outputs[0]], {"to": FLOAT16})


def _check_attention(root: ir.Node) -> None:
    """Refuse an Attention with a cache, with masks that count on halves, or that is converted anyway."""
    stepwise = optional(root, PAST) is not None or any(is_used(value) for value in root.outputs[1:])
    need(not stepwise, "its cache would be converted in every step", root)
    need("softmax_precision" not in root.attributes, "the precision of its Softmax is chosen", root)
    _check_mask(optional(root, MASK))
    around = [_is_computed_in_floats(node) for node in _neighbours(root)]
    need(any(around), "its neighbours have kernels of halves", root)
    need(not all(around), "ONNX Runtime computes it in single precision, as it does its neighbours", root)


def _check_clip(root: ir.Node) -> None:
    """Refuse a Clip that ONNX Runtime would not make a part of a convolution of floats."""
    x, *bounds = root.inputs
    need(bool(bounds), "its bounds are attributes", root)
    need(all(value is None or is_constant(value) for value in bounds), "its bounds are computed", root)
    before = producer(x, "Conv")
    only_user(before.outputs[0])
    need(_is_computed_in_floats(before), "there is a kernel of halves", before)


def _single(value: ir.Value | None) -> ir.Value | None:
    if value is None or value.dtype != FLOAT16:
        return value
    return ir.node("Cast", [value], {"to": FLOAT}).outputs[0]


def _neighbours(root: ir.Node) -> Iterator[ir.Node]:
    """The nodes that give it halves, and those that take them."""
    producers = (value.producer() for value in root.inputs if value is not None and value.dtype == FLOAT16)
    yield from (node for node in producers if node is not None)
    for value in root.outputs:
        yield from users(value)


def _is_computed_in_floats(node: ir.Node) -> bool:
    """Whether ONNX Runtime computes a node in single precision on the CPU."""
    version = scope.of_node(node).opset_imports.get(node.domain, 1)
    return support(CPU, node, version) is Support.CAST


def _check_mask(mask: ir.Value | None) -> None:
    """Refuse large finite numbers: a row that they mask whole is uniform, as halves round scores away beside them."""
    if mask is None or mask.dtype == ir.DataType.BOOL:
        return
    node = before(mask, *LAYOUT).producer()
    if not is_op(node, "Where"):
        raise Refusal("the mask may hold large finite numbers", mask)
    for value in node.inputs[1:]:
        exact = is_constant(value) and bool(np.all(np.isin(array_of(value).astype(np.float32), (0.0, -np.inf))))
        need(exact, "the mask may hold large finite numbers", mask)
