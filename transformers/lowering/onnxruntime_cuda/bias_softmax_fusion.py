"""A mask or a bias that is added before a Softmax is added inside of it, without a pass over memory of its own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernels import CUDA
from ortopt.graph.match import (
    Dim,
    Refusal,
    choose,
    dims,
    inputs,
    is_never_zero,
    need,
    producer,
    same_dim,
    same_type,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

LAST_AXIS_FROM = 13


class BiasSoftmaxFusion(RewriteRule[Match]):
    """``Softmax(x + bias)`` → ``com.microsoft.BiasSoftmax(x, bias)``.

    It looks once, when attention has been found, which is one kernel with what it adds.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("attention_fusion", "constant_folding", "group_query_attention_fusion")
    apply_once = True
    roots = ("Softmax",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    providers = (CUDA,)
    produces = ((MICROSOFT, "BiasSoftmax"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A Softmax, and a bias that repeats over the first or over the last of the other dimensions.

        Before opset 13 a Softmax was over all dimensions from its axis on, as the kernel takes them.
        """
        addition = producer(inputs(root, 1)[0], "Add")
        total = dims(addition.outputs[0])
        need(len(total) > 0, "it has no axis", root)
        at = ops.Softmax(root).axis
        need(ops.Softmax(root).flattens or ops.Softmax(root).is_last, "it is not over the last axis", root)
        a, b = inputs(addition, 2)
        x, bias = choose([(a, b), (b, a)])
        shape, own = dims(x), dims(bias)
        alike = len(shape) == len(total) and all(map(same_dim, shape, total))
        need(alike and same_type(x, bias), "the bias enlarges the scores", bias)
        count = len(shape) - at
        repeats = len(own) < count or not all(map(same_dim, own[-count:], shape[at:]))
        need(not repeats, "the bias repeats over what the Softmax is over", bias)
        need(all(is_never_zero(dim, root) for dim in shape), "a dimension may be 0, by which the kernel divides", x)
        leading = (1,) * (len(shape) - len(own)) + tuple(own[:-count])
        inner = _is_inner(leading, shape[:at], bias)
        attributes = {"axis": at - len(shape), "is_inner_broadcast": int(inner)}
        return Match((addition, root), lambda: ir.node("BiasSoftmax", [x, bias], attributes, domain=MICROSOFT))


def _is_inner(own: Sequence[Dim], shape: Sequence[Dim], bias: ir.Value) -> bool:
    """Whether the bias is the same for the last of the dimensions; if not, it is for the first of them."""
    kept = [same_dim(dim, to) for dim, to in zip(own, shape, strict=True)]
    single = [isinstance(dim, int) and dim == 1 for dim in own]
    for cut in range(len(shape) + 1):
        if all(kept[:cut]) and all(single[cut:]):
            return True
        if all(single[:cut]) and all(kept[cut:]):
            return False
    raise Refusal("the bias repeats over dimensions in the middle", bias)
