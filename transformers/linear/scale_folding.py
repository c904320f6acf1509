"""A constant factor after a linear layer, or after Reshapes of its result, can be folded into its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.magnitudes import need_near
from ortopt.graph.match import (
    FLOATS,
    Dim,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    keeps_rank,
    need,
    optional,
    scalar,
    static_dims,
)
from ortopt.linear.folding import factor_of, layer_alone, node_alone, rebuilt
from ortopt.linear.weights import scaled
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING

REARRANGING = RESHAPING | {"GatherElements", "Identity", "Transpose"}
REPEATING = ("Expand", "Tile")
ABOVE = frozenset((*REARRANGING, "Gemm", "MatMul", "Add"))
MAX_MOVES = 6


class ScaleFolding(RewriteRule[Match]):
    """``(x·W + b) * c`` → ``x·(W * c) + b * c``, also ``/ c`` and through Reshape, Transpose and GatherElements.

    Exporters scale the queries and keys of attention in this way, in each layer. A number for each column is taken in
    as well, where nothing moves columns: the layer scale of vision transformers, the offsets of deformable attention by
    the sizes of images. For convolutions see `conv_mul_fusion`.
    """

    after = ("constant_reassociation", "reshape_merging", "transpose_merging")
    roots = ("Div", "Mul")
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    numerics = Numerics.REORDERED
    lookback = 6

    def match(self, root: ir.Node) -> Match:
        """A factor of one number, and above it a MatMul or Gemm with constant weights that no other node uses."""
        number, at = factor_of(root)
        path = [root, _node_alone(at, root)]
        while path[-1].op_type in REARRANGING and len(path) <= MAX_MOVES:
            path.append(_node_alone(inputs(path[-1], 1)[0], root))
        nodes, places = layer_alone(path.pop(), root)
        path += nodes
        layer = path[-1]
        weights = _weights(layer)
        if weights[0] is not layer:
            path.append(weights[0])
        need(len(dims(layer.outputs[0])) >= 2, "it is no matrix", layer)
        need(dtype(at) in FLOATS, "it is no factor", number)
        factor = _factor(number, at, path)
        plain = factor.size == 1 or weights == (layer, 1)
        need(plain, "it is not one number, and the weights are on the left, or repeated", number)
        need(bool((np.isfinite(factor) & (factor != 0)).all()), "it is no factor", number)
        factor = 1 / factor if is_op(root, "Div") else factor
        factor = np.asarray(factor, np.float64 if dtype(at) == ir.DataType.DOUBLE else np.float32)
        contents = {
            (node, place): scaled(node.inputs[place], _turned(factor, node, place))
            for node, place in (weights, *places)
        }
        need_near(1.0, (np.abs(factor),), dtype(at), number)
        old = tuple(reversed(path))  # the scaling node comes last
        return Match(old, lambda: rebuilt(old[:-1], contents)[old[-2].outputs[0]])


def _factor(number: ir.Value, at: ir.Value, path: Sequence[ir.Node]) -> np.ndarray:
    """One number, or one for each column of the layer at the end of a path, be it split into several axes."""
    own = static_dims(number)
    if math.prod(own) == 1:
        need(keeps_rank(number, at), "the factor would raise the rank", number)
        return np.asarray(scalar(number))
    need(is_constant(number), "the factor is no constant", number)
    kept = not any(is_op(node, *REARRANGING - RESHAPING) for node in path[1:])
    need(kept, "it is not one number, and columns are moved", number)
    layers = [node for node in path[1:] if not is_op(node, *RESHAPING)]
    columns = dims(layers[0].outputs[0])[-1]
    for node in layers:
        need(_has_columns(node, columns), "what it scales has other columns", node)
    return _of_columns(number, dims(at), columns)


def _of_columns(number: ir.Value, shape: Sequence[Dim], columns: Dim) -> np.ndarray:
    """A number for each column, of a constant that is broadcast to a value whose last axes are the columns.

    Raises:
        Refusal: If they are not, or the constant has numbers for other axes.
    """
    own = static_dims(number)
    reason = "it is not one number, nor one for each column"
    need(len(own) <= len(shape), reason, number)
    last = next((k for k in range(1, len(shape) + 1) if math.prod(_sizes(shape[-k:])) == columns), 0)
    behind = _sizes(shape[-last:])
    need(last > 0 and all(size == 1 for size in own[:-last]), reason, number)
    need(all(size in (1, whole) for size, whole in zip(own[::-1], behind[::-1], strict=False)), reason, number)
    return np.broadcast_to(array_of(number).reshape(own[-last:]), behind).reshape(-1)


def _sizes(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Sizes that are known; 0 for those that are not."""
    return tuple(size if isinstance(size, int) else 0 for size in shape)


def _has_columns(node: ir.Node, columns: Dim) -> bool:
    """Whether the constants of a layer, or of the Add after it, have a number for each column of the result."""
    if is_op(node, "Add"):
        return all(dims(value)[-1:] == (columns,) for value in inputs(node, 2))
    weight = dims(inputs(node, len(node.inputs))[1])
    transposed = is_op(node, "Gemm") and ops.Gemm(node).transposes_b
    summand = optional(node, 2)
    return (
        len(weight) > 1
        and weight[-2 if transposed else -1] == columns
        and (summand is None or dims(summand)[-1:] == (columns,))
    )


def _turned(factor: np.ndarray, node: ir.Node, place: int) -> np.ndarray:
    """The factor, along the axis of the columns."""
    turned = factor.size > 1 and is_op(node, "Gemm") and place == 1 and ops.Gemm(node).transposes_b
    return factor[:, None] if turned else factor


def _weights(layer: ir.Node) -> tuple[ir.Node, int]:
    """Where the weights of a layer are: in the layer, or what is repeated for it, as it is for each batch.

    A MatMul may have them on the left, as products of positions with keys do.
    """
    places = (1, 0) if is_op(layer, "MatMul") else (1,)
    for place in places:
        if is_constant(layer.inputs[place]):
            return layer, place
    for place in places:
        value = layer.inputs[place]
        repeated = None if value is None else value.producer()
        if not is_op(repeated, *REPEATING) or not is_constant(repeated.inputs[0]):
            continue
        if repeated.graph is layer.graph and is_used_once(repeated.outputs[0]):
            return repeated, 0
    return layer, 1


def _node_alone(value: ir.Value, root: ir.Node) -> ir.Node:
    node = node_alone(value, root)
    need(node.op_type in ABOVE and not node.domain, "no linear layer is above it alone", value)
    return node
