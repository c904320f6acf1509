"""Rules that fold nodes into linear ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, TypeAlias

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.magnitudes import need_near
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    dtype,
    inputs,
    is_op,
    is_used_once,
    keeps_rank,
    need,
    operand_constant,
    operand_from,
    opset,
    optional,
    producer,
    scalar,
    tensor_of,
)
from ortopt.linear.channels import Affine
from ortopt.linear.layer import CONVOLUTIONS, Folded, linear
from ortopt.linear.weights import Array
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.opset_changes import BROADCASTS_FROM

Place: TypeAlias = tuple[ir.Node, int]
"""An input of a node."""


class LinearFolding(RewriteRule[Folded]):
    """What rules have in common that fold a node into a linear op; by default the root into the op before it.

    Attributes:
        into: The linear ops that the root may stand behind.
    """

    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand broadcasts
    numerics = Numerics.REORDERED
    into: ClassVar[tuple[str, ...]] = CONVOLUTIONS

    def match(self, root: ir.Node) -> Folded:
        """A node that scales and shifts channels by constants, behind a linear op."""
        number: ir.Value | None
        if root.op_type in ("Add", "Mul", "Sum"):
            node, number = operand_from(root, *self.into)
        else:
            node, number = producer(inputs(root, 1)[0], *self.into), optional(root, 1)
        result = node.outputs[0]
        need(is_used_once(result), f"{node.op_type}'s result is used elsewhere", result)
        layer = linear(node)
        affine = Affine(root, result, None if root.op_type == "BatchNormalization" else number)
        need(affine.number is not None or layer.axis == 1, "the columns are not the channels", root)
        return layer.fold_behind(affine.effect(layer.outputs, layer.rank, layer.axis), root)

    def rewrite(self, found: Folded) -> ir.Node:
        """Build the linear op."""
        return found.node()


def node_alone(value: ir.Value, root: ir.Node) -> ir.Node:
    """The node above a value, in the graph of a node, if nothing else reads the value.

    Raises:
        Refusal: If there is none, or something does.
    """
    node = value.producer()
    if node is None or node.graph is not root.graph or not is_used_once(value):
        raise Refusal("no linear layer is above it alone", value)
    return node


def factor_of(scaling: ir.Node) -> tuple[ir.Value, ir.Value]:
    """What a Mul multiplies by, a constant, or a Div divides by; and what it scales.

    Raises:
        Refusal: If a Mul has no constant.
    """
    if is_op(scaling, "Mul"):
        return operand_constant(scaling)
    x, divisor = inputs(scaling, 2)
    return divisor, x


def scaling_of(node: ir.Node) -> tuple[float, ir.Value]:
    """The one number by which a Mul or Div scales a value, and the value.

    Raises:
        Refusal: If there is none, it is 0, not finite or far from 1, or it raises the rank.
    """
    need(opset(node) >= BROADCASTS_FROM, "an attribute says how its operands broadcast", node)
    number, x = factor_of(node)
    factor = scalar(number)
    need(math.isfinite(factor) and factor != 0, "it is no factor", number)
    need(keeps_rank(number, x), "the factor would raise the rank", number)
    need_near(1.0, (abs(factor),), dtype(x), number)
    return 1 / factor if is_op(node, "Div") else factor, x


def layer_alone(last: ir.Node, root: ir.Node) -> tuple[list[ir.Node], list[Place]]:
    """The Gemm, or the MatMul and the Add of its bias, that end in a node, if nothing else reads the product.

    Args:
        last: The node.
        root: The node for which they are read.

    Returns:
        The nodes, the product last; and where their bias is.

    Raises:
        Refusal: If it is neither.
    """
    nodes, places = [last], []
    if is_op(last, "Add"):
        _, product = operand_constant(last)
        places.append((last, 1 if last.inputs[0] is product else 0))
        nodes.append(node_alone(product, root))
    layer = nodes[-1]
    need(is_op(layer, "Gemm", "MatMul"), "no linear layer is above it alone", layer)
    if optional(layer, 2) is not None and ops.Gemm(layer).beta != 0:
        places.append((layer, 2))
    return nodes, places


def rebuilt(
    nodes: Iterable[ir.Node],
    contents: Mapping[Place, Array],
    settings: Mapping[ir.Node, Mapping[str, ops.Setting]] = MappingProxyType({}),
) -> dict[ir.Value | None, ir.Value]:
    """Build nodes anew, each on the results of those before, with other constants.

    Args:
        nodes: The nodes in order.
        contents: New constants by place, not by value: the same one may stand at others too.
        settings: Attributes that change.

    Returns:
        The new results by the old ones.
    """
    made: dict[ir.Value | None, ir.Value] = {}
    for old in nodes:
        operands = [
            constant(contents[old, place], tensor_of(value).dtype)
            if value is not None and (old, place) in contents
            else made.get(value, value)
            for place, value in enumerate(old.inputs)
        ]
        made[old.outputs[0]] = ops.copied(old, operands, **settings.get(old, {})).outputs[0]
    return made
