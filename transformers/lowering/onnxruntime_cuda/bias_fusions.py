"""Biases that kernels of CUDA add, without a pass over memory of their own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernels import CUDA
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    choose,
    dims,
    inputs,
    is_used_once,
    is_vector_of,
    need,
    need_never_zero,
    need_present,
    only_user,
    operand_from,
    producer,
    same_dim,
    same_type,
    users,
)
from ortopt.graph.symbolic import same_shape
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT


class _CudaFusion(RewriteRule[Match]):
    """A fusion into a kernel that CUDA alone has."""

    levels = (TransformerLevel.LEVEL2,)
    providers = (CUDA,)


NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")


class BiasAddFusion(_CudaFusion):
    """``(x + bias) + residual`` → ``com.microsoft.BiasAdd(x, bias, residual)``.

    A bias and a residual are added in one pass over memory.
    """

    after = ("attention_fusion", "bias_gelu_fusion", "skip_layer_norm_fusion", "skip_rms_norm_fusion")
    roots = ("Add",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    looks_downstream = True
    produces = ((MICROSOFT, "BiasAdd"),)

    def match(self, root: ir.Node) -> Match:
        """Three dimensions; a bias for the last one; and a residual of the same shape."""
        inner, skip = operand_from(root, "Add")
        a, b = inputs(inner, 2)
        x, bias = choose([(a, b), (b, a)])
        shape, other = dims(x), dims(skip)
        need_present(len(shape) == 3, "the rank is not 3", x)
        need(is_vector_of(bias, shape[-1]), "it is no bias of the last dimension", bias)
        need(same_shape(shape, other), "the residual has another shape", skip)
        need(same_type(x, skip) and same_type(x, bias), "the types differ", skip)
        need_never_zero(shape, "a dimension may be 0", root)
        normalized = any(user.op_type in NORMALIZATIONS for user in users(root.outputs[0]))
        need(not normalized, "the normalization behind it takes all three", root)
        return Match((inner, root), lambda: ir.node("BiasAdd", [x, bias, skip], domain=MICROSOFT))


class BiasSoftmaxFusion(_CudaFusion):
    """``Softmax(x + bias)`` → ``com.microsoft.BiasSoftmax(x, bias)``.

    A mask or a bias that is added before a Softmax is added inside of it, without a pass over memory of its own.

    It looks once, when attention has been found, which is one kernel with what it adds.
    """

    after = ("attention_fusion", "constant_folding", "group_query_attention_fusion")
    apply_once = True
    roots = ("Softmax",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
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
        need(same_shape(shape, total) and same_type(x, bias), "the bias enlarges the scores", bias)
        count = len(shape) - at
        repeats = len(own) < count or not all(map(same_dim, own[-count:], shape[at:]))
        need(not repeats, "the bias repeats over what the Softmax is over", bias)
        need_never_zero(shape, "a dimension may be 0, by which the kernel divides", root)
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


HALVES = (1280, 2560, 3072, 5120, 6144)
"""The sizes of a half that the kernel has code for."""


class BiasSplitGeluFusion(_CudaFusion):
    """``left · Gelu(right)`` of ``left, right = Split(x + bias)`` → ``com.microsoft.BiasSplitGelu(x, bias)``.

    A gated GELU layer adds its bias, splits, activates one half and multiplies: in one pass over memory.
    """

    after = ("gather_slice_to_split_fusion", "gelu_fusion")
    roots = ("Gelu", f"{MICROSOFT}::Gelu")
    lookback = 3
    looks_downstream = True
    produces = ((MICROSOFT, "BiasSplitGelu"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Two equal halves of the last of three dimensions, of a size that there is a kernel for."""
        need(attribute(root, "approximate", "none") == "none", "the Gelu is approximate", root)
        (right,) = inputs(root, 1)
        product = only_user(root.outputs[0], "Mul")
        a, b = inputs(product, 2)
        left = b if a is root.outputs[0] else a
        split = producer(left, "Split")
        need(list(split.outputs) == [left, right], "it is no gate of two halves", split)
        addition = producer(inputs(split, 1)[0], "Add")
        need(all(map(is_used_once, (left, right))), "a half is used elsewhere", split)
        c, d = inputs(addition, 2)
        x, bias = choose([(c, d), (d, c)])
        shape, half = dims(x), dims(left)
        need(len(shape) == 3 and ops.Split(split).is_last, "it is not split along the last of three dimensions", split)
        need(half[-1] in HALVES, "there is no kernel for this size", left)
        need(shape[-1] == 2 * int(str(half[-1])), "the halves are not equal", split)
        need(is_vector_of(bias, shape[-1]) and same_type(x, bias), "it is no bias of the last dimension", bias)
        need_never_zero(shape, "a dimension may be 0", root)
        y, nodes = product.outputs[0], (addition, split, root, product)
        return Match(nodes, lambda: {y: ir.node("BiasSplitGelu", [x, bias], domain=MICROSOFT).outputs[0]}, (y,))
