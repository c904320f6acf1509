"""A constant for each channel of what goes into a convolution can be in its bias, unless zeros are padded behind it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_no_larger
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    array_of,
    dtype,
    inputs,
    is_constant,
    is_op,
    need,
    operand_constant,
    optional,
    plain_attributes,
    producer,
    tensor_of,
    users,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.channels import of_input_channels
from ortopt.patterns.convolution import vector
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The convolution, what the constant is added to, and the new bias."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    bias: np.ndarray


class AddConvFusion(RewriteRule[Found]):
    """``Conv(x + c, W, b)`` → ``Conv(x, W, b + W · c)`` without padding, also ``- c``.

    It runs at level 2, because at level 1 the summand may still be part of an activation that another pass recognises.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "hard_swish_fusion", "opset_conversion")
    roots = ("Conv",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand of Add broadcasts
    numerics = Numerics.REORDERED
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
        """A constant that differs along the channels only, before convolutions that need it nowhere else."""
        moved, weight = inputs(root, 2)
        addition = producer(moved, "Add", "Sub")
        number, x = operand_constant(addition) if is_op(addition, "Add") else inputs(addition, 2)[::-1]
        tensor_of(number)
        need(dtype(x) in FLOATS and not is_constant(x), "it is no float", x)
        plain_attributes(root)
        need(not ops.Conv(root).is_padded, "a padded zero would be shifted", root)
        others = (user for user in users(moved) if user is not root)
        gone = not moved.is_graph_output() and all(
            is_op(user, "Conv") and not ops.Conv(user).is_padded for user in others
        )
        need(gone, "the sum is used elsewhere", moved)
        content = array_of(weight).astype(np.float64)
        need(content.size > 0, "the weights are empty", weight)
        shift = of_input_channels(number, root, x)
        shift = -shift if is_op(addition, "Sub") else shift
        return Found((root,), x, self._bias(root, content, ops.Conv(root).group, shift, number))

    def _bias(self, root: ir.Node, weight: np.ndarray, group: int, shift: np.ndarray, about: ir.Value) -> np.ndarray:
        """The bias with what becomes of the shift, if nothing overflows."""
        outputs, inner = weight.shape[:2]
        by_group = weight.reshape(group, outputs // group, inner, -1)
        bias = optional(root, 2)
        need(bias is None or is_constant(bias), "the bias is not a constant", bias)
        before = np.zeros(outputs) if bias is None else vector(bias, outputs)
        after = before + (by_group * shift.reshape(group, 1, inner, 1)).sum(axis=(2, 3)).reshape(outputs)
        kind = tensor_of(root.inputs[1]).dtype
        with np.errstate(over="ignore"):
            rounded: np.ndarray = after.astype(kind.numpy())
        need(bool(np.isfinite(rounded).all()), "a folded number would not be finite", root)
        behind = np.abs(by_group).sum(axis=(1, 3)).reshape(-1)
        need_no_larger(np.abs(shift), (1.0, behind), kind, about)
        return rounded

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution."""
        (root,) = found.nodes
        bias = constant(found.bias, tensor_of(root.inputs[1]).dtype)
        return ir.Node("", "Conv", [found.x, root.inputs[1], bias], list(root.attributes.values()))
