"""Weights of few bits that arithmetic in the graph unpacks: shifts and masks, a Cast, a zero point, a scale.

So exports write them whose framework packs several integers into one: two of 4 bits into a byte, or eight into an
int32. A group of the inputs has a scale and a zero point; the inputs of a group need not follow one another (g_idx).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops, semantics
from ortopt.graph import scope
from ortopt.graph.match import Refusal, is_constant, is_used_once, need, need_float32, need_known, static_dims
from ortopt.graph.walk import Question, walk
from ortopt.patterns.quantized_blocks import MIN_BLOCK, Blocks
from ortopt.semantics.op_traits import RESHAPING

VIEWS = RESHAPING | {"Identity"}
SCALING = frozenset({"Div", "Mul"})
UNPACKING = frozenset({"BitShift", "BitwiseAnd", "Mod"})
"""What takes integers out of those into which they are packed; a Div by 16 is no sign by itself."""

LARGEST_BLOCK = 256
MAX_NODES = 64
"""How many nodes the arithmetic of one weight may have."""

SMALL = 16
"""What has fewer elements than the weight by this factor is not the weight: a scale, a shape."""


class Steps(Struct, frozen=True):
    """Integers less zero points, and the scale of each, in the shape of the value that they stand for."""

    integers: np.ndarray
    scales: np.ndarray


class Unpacked(NamedTuple):
    """A weight, and which input of the product each of its rows belongs to; None where they are in order."""

    blocks: Blocks
    order: np.ndarray | None


def packed_parts(weight: ir.Value) -> frozenset[ir.Value]:
    """The values between packed integers and the floats of a weight, both ends of which are found.

    Args:
        weight: What a product reads.

    Returns:
        The values, without those that are small beside it; none where it is no such weight.
    """
    nodes = _behind(weight) or []
    if not is_unpacked(weight) or not any(node.op_type in UNPACKING for node in nodes):
        return frozenset()
    least = _size(weight) // SMALL
    return frozenset(value for node in nodes for value in node.outputs if _size(value) > least)


def is_unpacked(weight: ir.Value) -> bool:
    """Whether a value comes from constants by a Cast of integers and a scale, packed or not."""
    ops = {node.op_type for node in _behind(weight) or ()}
    return "Cast" in ops and bool(ops & SCALING) and "DequantizeLinear" not in ops


def unpacked(weight: ir.Value, *, by_rows: bool) -> Unpacked:
    """The weight that a value is unpacked to, for what reads it alone.

    Args:
        weight: The floats, of two dimensions.
        by_rows: Whether each row makes a column of the product, as with a transposed weight.

    Raises:
        Refusal: If it is no such weight, with the reason.
    """
    need(is_used_once(weight) and not weight.is_graph_output(), "others read the floats of the weight", weight)
    need(all(static_dims(weight, 2)), "the weight is empty", weight)
    steps = walk(_steps, weight, unknown=Refusal("too many nodes unpack the weight", weight))
    turn = (lambda content: content) if by_rows else np.transpose
    integers, scales = turn(steps.integers), turn(np.broadcast_to(steps.scales, steps.integers.shape))
    size = _block(scales)
    order = None
    if not size:
        order = _order(scales)
        integers, scales = integers[:, order], scales[:, order]
        size = _block(scales)
        need(bool(size), "groups of the weight have no size that the kernel knows, or several", weight)
    return Unpacked(_packable(integers, scales, size, by_rows, weight), order)


def _behind(weight: ir.Value) -> list[ir.Node] | None:
    """The nodes that a value is computed by; None where they are too many or depend on inputs, or it is a constant."""
    nodes: dict[ir.Node, None] = {}
    pending = [weight]
    while pending:
        value = pending.pop()
        if is_constant(value):
            continue
        node = value.producer()
        known = node is not None and node.domain == "" and next(semantics.subgraphs(node), None) is None
        if node is None or not known or not node.inputs or len(nodes) >= MAX_NODES:
            return None
        if node not in nodes:
            nodes[node] = None
            pending.extend(each for each in node.inputs if each is not None)
    return list(nodes) or None


def _size(value: ir.Value) -> int:
    try:
        return int(np.prod(static_dims(value)))
    except Refusal:
        return 0


def _steps(value: ir.Value) -> Question[ir.Value, Steps]:
    """What a value of float32 is, as integers and scales."""
    need_float32(value)
    node = value.producer()
    need(node is not None and node.domain == "", "no arithmetic unpacks the weight", value)
    assert node is not None
    operands = [each for each in node.inputs if each is not None]
    if node.op_type == "Cast":
        return Steps(_evaluated(operands[0]), np.ones((), np.float32))
    if node.op_type in VIEWS or node.op_type == "Transpose":
        return _moved(node, (yield operands[0]))
    if node.op_type == "Sub":
        return _shifted(node, (yield operands[0]), operands[1])
    need(node.op_type in SCALING, f"{node.op_type} does not unpack integers", node)
    first, second = operands
    if node.op_type == "Mul" and not _has_cast(first):
        first, second = second, first
    return _scaled(node, (yield first), second)


def _moved(node: ir.Node, steps: Steps) -> Steps:
    scales = np.broadcast_to(steps.scales, steps.integers.shape)
    if node.op_type == "Transpose":
        perm = ops.Transpose(node).order
        return Steps(steps.integers.transpose(perm), scales.transpose(perm))
    shape = static_dims(node.outputs[0])
    flat = steps.scales if steps.scales.size == 1 else scales.reshape(shape)
    return Steps(steps.integers.reshape(shape), flat.reshape(()) if flat.size == 1 else flat)


def _shifted(node: ir.Node, steps: Steps, subtracted: ir.Value) -> Steps:
    need(steps.scales.ndim == 0 and bool(steps.scales == 1), "it subtracts after it has scaled", node)
    zeros = _evaluated(subtracted)
    shape = static_dims(node.outputs[0])
    return Steps(np.asarray(np.broadcast_to(steps.integers, shape) - zeros, np.int32), steps.scales)


def _scaled(node: ir.Node, steps: Steps, factor: ir.Value) -> Steps:
    """A product by a scale on either side, or a quotient; the scale is what no Cast of integers is behind."""
    scale = _values(factor)
    need(scale.dtype == np.float32 and bool(np.isfinite(scale).all()), "the scale is not float32 and finite", node)
    shape = static_dims(node.outputs[0])
    own = np.broadcast_to(steps.scales, steps.integers.shape) if steps.scales.ndim else steps.scales
    need(node.op_type == "Mul" or bool(np.all(scale != 0)), "a scale is 0", node)
    both = own * scale if node.op_type == "Mul" else own / scale
    need(bool(np.isfinite(both).all()), "a product of scales overflows", node)
    return Steps(np.broadcast_to(steps.integers, shape), np.asarray(both, np.float32))


def _has_cast(value: ir.Value) -> bool:
    nodes = _behind(value)
    return nodes is not None and any(node.op_type == "Cast" for node in nodes)


def _evaluated(value: ir.Value) -> np.ndarray:
    """A constant or computed tensor of integers, of whatever type."""
    content = _values(value)
    need(content.dtype.kind in "iuf", "the integers are of another type", value)
    small = bool(np.all(np.abs(content) <= np.iinfo(np.int16).max)) and bool(np.all(content == np.rint(content)))
    need(small, "the weight or its zero points are no integers of few bits", value)
    return content.astype(np.int32)


def _values(value: ir.Value) -> np.ndarray:
    """What a value holds that depends on constants alone."""
    tensor = semantics.constant_tensor(value)
    if tensor is None:
        from ortopt.evaluation.evaluate import evaluate

        nodes = need_known(_behind(value), "the weight depends on inputs", value)
        where = scope.of_node(nodes[0])
        ordered = sorted(nodes, key=list(nodes[0].graph or ()).index)
        computed = evaluate(ordered, [value], opset_imports=where.opset_imports, is_random=semantics.is_random)
        tensor = computed.get(value)
    tensor = need_known(tensor, "the weight cannot be computed ahead", value)
    return np.asarray(tensor.numpy())


def _block(scales: np.ndarray) -> int:
    """The largest size of blocks along the last axis of which each has one scale; 0 where there is none."""
    size = LARGEST_BLOCK
    while size >= MIN_BLOCK:
        if scales.shape[-1] % size == 0:
            cut = scales.reshape(scales.shape[0], -1, size)
            if bool(np.all(cut == cut[..., :1])):
                return size
        size //= 2
    return 0


def _order(scales: np.ndarray) -> np.ndarray:
    """The columns of a matrix such that equal ones follow one another."""
    _, groups = np.unique(scales, axis=1, return_inverse=True)
    return np.argsort(groups.reshape(-1), kind="stable")


def _packable(integers: np.ndarray, scales: np.ndarray, size: int, by_rows: bool, weight: ir.Value) -> Blocks:
    """Integers without signs, with zero points that give them back."""
    cut = integers.reshape(integers.shape[0], -1, size)
    low, high = cut.min(axis=-1), cut.max(axis=-1)
    for bits in (4, 8):
        half, most = 2 ** (bits - 1), 2**bits - 1
        zeros = np.where((low >= -half) & (high < half), half, np.maximum(0, -low))
        if bool(np.all((low + zeros >= 0) & (high + zeros <= most) & (zeros <= most))):
            whole = integers + np.repeat(zeros, size, axis=1)
            return Blocks((), whole, scales[:, ::size], zeros, 1, not by_rows, size, bits, is_signed=False)
    raise Refusal("no kernel has integers of so many bits", weight)
