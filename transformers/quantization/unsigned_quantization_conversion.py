"""The kernels of x86 processors multiply unsigned by signed integers; activations may be shifted to be unsigned.

Signed integers of 8 bits between QuantizeLinear and DequantizeLinear become so with all that moves and computes them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    array_of,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used,
    need,
    plain_attributes,
    users,
)
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.quantization import (
    SHIFT,
    as_unsigned,
    has_one_scale,
    is_dequantizer,
    is_quantizer,
    need_native,
    scaling,
)
from ortopt.patterns.quantized_kernels import QUANTIZERS
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import PERMUTING, SELECTING
from ortopt.system import processor

MOVING = (PERMUTING | SELECTING | {"MaxPool"}) - {"Split"}
DIVIDING = frozenset({"Concat", "Split"})
"""Ops that put tensors of integers together, or take one apart, and change none."""

LARGEST = 10_000
"""How many nodes a region may have."""


class Operand(Struct, frozen=True):
    """Where a kernel reads integers, and their zero point."""

    integers: int
    zero_point: int
    is_weight: bool = False
    """Whether a constant here may stay signed where the other operand is unsigned."""


class Kernel(Struct, frozen=True):
    """Where a kernel reads integers, and where it reads the zero point of its result."""

    operands: tuple[Operand, ...]
    result: int


_UNARY = Kernel((Operand(0, 2),), 4)
_BINARY = Kernel((Operand(0, 2), Operand(3, 5)), 7)
_PRODUCT = Kernel((Operand(0, 2), Operand(3, 5, is_weight=True)), 7)

KERNELS = {
    ("", "QLinearConv"): _PRODUCT,
    ("", "QLinearMatMul"): _PRODUCT,
    (MICROSOFT, "QGemm"): Kernel(_PRODUCT.operands, 8),
    (MICROSOFT, "QLinearAdd"): _BINARY,
    (MICROSOFT, "QLinearMul"): _BINARY,
    (MICROSOFT, "QLinearWhere"): Kernel((Operand(1, 3), Operand(4, 6)), 8),
    **{
        (MICROSOFT, f"QLinear{op}"): _UNARY
        for op in ("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax")
    },
}


class UnsignedQuantizationConversion(RewriteRule[Match]):
    """``Dequantize(Quantize(x))`` by int8 → by uint8, with zero points that are 128 more.

    Exact: the same steps have other names. With ``--march native`` on x86 processors only, whose kernels for two signed
    operands are several times slower. Integers may be moved between the two, or be computed by quantized kernels
    (QLinearConv, QLinearAdd …), where nobody else sees them; weights keep their signs.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = QUANTIZERS
    looks_downstream = True
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """Integers of 8 bits with a sign, all of which are dequantized again."""
        _check_machine(root)
        nodes = _region(root)
        results = [value for node in nodes for value in node.outputs]  # others see floats, and no signed bytes
        replaced = tuple(value for value in results if value.dtype != ir.DataType.INT8 and is_used(value))
        return Match(nodes, lambda: _all_unsigned(nodes, replaced), replaced)


def _all_unsigned(nodes: tuple[ir.Node, ...], replaced: tuple[ir.Value, ...]) -> dict[ir.Value, ir.Value]:
    """All nodes of a region, built anew for unsigned integers: the results by those that they replace."""
    shifted: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        new = _made_unsigned(node, shifted)
        shifted.update(zip(node.outputs, new.outputs, strict=False))
    return {value: shifted[value] for value in replaced}


def _check_machine(root: ir.Node) -> None:
    need_native(root, "faster on some processors only")
    need(processor.is_x86(), "this processor has kernels for signed integers", root)


def _region(root: ir.Node) -> tuple[ir.Node, ...]:
    """The nodes that read or make the signed integers that a QuantizeLinear makes, and those that depend on them.

    Args:
        root: The QuantizeLinear.

    Returns:
        The nodes in topological order.

    Raises:
        Refusal: If somebody else sees the integers, with the reason.
    """
    _check_signed(root)
    nodes: dict[ir.Node, None] = {root: None}
    pending = [root.outputs[0]]
    while pending:
        value = pending.pop()
        need(not value.is_graph_output(), "the integers are a result of the model", value)
        need(len(nodes) < LARGEST, "too many nodes depend on one another", root)
        for node in (value.producer(), *users(value)):
            if node is None:
                raise Refusal("the integers are an input of the model", value)
            need(node.graph is root.graph, "a subgraph uses the integers", value)
            if node not in nodes:
                nodes[node] = None
                pending += [each for each in _integers(node) if each is not value]
            _check_reads(node, value)
    need(len(nodes) > 1, "nobody dequantizes the integers", root)
    order = {node: position for position, node in enumerate(root.graph or ())}
    return tuple(sorted(nodes, key=order.__getitem__))


def _check_signed(node: ir.Node) -> None:
    plain_attributes(node)
    need(has_one_scale(node), "there are several scales", node)
    need(scaling(node).integers == ir.DataType.INT8, "the integers are not of 8 bits with a sign", node)


def _integers(node: ir.Node) -> list[ir.Value]:
    """The signed integers that a node reads and makes, which have to become unsigned with it."""
    if is_quantizer(node):
        _check_signed(node)
        return [node.outputs[0]]
    if is_dequantizer(node):
        _check_signed(node)
        return [value for value in node.inputs[:1] if value is not None]
    plain_attributes(node)
    if node.domain == "" and node.op_type in MOVING:
        return [value for value in (node.inputs[0], node.outputs[0]) if value is not None]
    if is_op(node, *DIVIDING):
        whole = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        parts = [value for value in whole if value is not None and not is_constant(value)]
        return [*parts, *(value for value in node.outputs if value.name)]
    operands = _operands_of(node)
    if not operands:
        raise Refusal("the integers are not only moved and dequantized", node)
    read = [node.inputs[each.integers] for each in operands if not _is_constant(node, each)]
    made = [value for value in node.outputs if value.dtype == ir.DataType.INT8]
    for value in read:
        need(value is not None and dtype(value) == ir.DataType.INT8, "its operands are of several types", node)
    for index in _zero_points_of(node):
        zero = node.inputs[index] if index < len(node.inputs) else None
        known = zero is None or (is_constant(zero) and array_of(zero).size == 1)
        need(known, "a zero point is computed, or there are several", node)
    return [value for value in (*read, *made) if value is not None]


def _check_reads(node: ir.Node, value: ir.Value) -> None:
    """Refuse where a node reads integers as something else, an index for example."""
    if is_op(node, "Concat"):
        return
    allowed = {each.integers for each in _operands_of(node)} or {0}
    misused = any(operand is value and index not in allowed for index, operand in enumerate(node.inputs))
    need(not misused, "the integers are used as something else", node)


def _operands_of(node: ir.Node) -> tuple[Operand, ...]:
    """Where a kernel reads integers; nothing for other nodes."""
    if (node.domain, node.op_type) == (MICROSOFT, "QLinearConcat"):
        return tuple(Operand(index, index + 2) for index in range(2, len(node.inputs), 3))
    kernel = KERNELS.get((node.domain, node.op_type))
    return () if kernel is None else kernel.operands


def _zero_points_of(node: ir.Node) -> tuple[int, ...]:
    """Where a kernel reads the zero points of what it computes from and of what it makes, weights apart."""
    if (node.domain, node.op_type) == (MICROSOFT, "QLinearConcat"):
        return (1, *(operand.zero_point for operand in _operands_of(node)))
    kernel = KERNELS.get((node.domain, node.op_type))
    if kernel is None:
        return ()
    made = (kernel.result,) if node.outputs[0].dtype == ir.DataType.INT8 else ()
    return (*(each.zero_point for each in kernel.operands if not _stays_signed(node, each)), *made)


def _stays_signed(node: ir.Node, operand: Operand) -> bool:
    """Whether an operand is a weight that the kernel takes with a sign beside an unsigned one."""
    return operand.is_weight and _is_constant(node, operand)


def _made_unsigned(node: ir.Node, shifted: dict[ir.Value, ir.Value]) -> ir.Node:
    """A node of a region for unsigned integers, whose zero points are 128 more.

    Args:
        node: The node.
        shifted: The unsigned integers for those of the region that come before.
    """
    operands = list(node.inputs)
    attributes = ops.changed(node.attributes.values(), output_dtype=None)
    if is_quantizer(node) or is_dequantizer(node):
        scale = inputs(node, 2)[1]
        zero = np.asarray(scaling(node).zero_point + SHIFT, np.uint8)
        operands[1:] = [scale, constant(zero.reshape(array_of(scale).shape))]
    elif is_op(node, "Concat"):
        operands = [value if value in shifted else as_unsigned(value) for value in operands]
    for index in _zero_points_of(node):
        operands += [None] * (index + 1 - len(operands))
        operands[index] = as_unsigned(operands[index])
    for operand in _operands_of(node):
        value = operands[operand.integers]
        if value not in shifted and not _stays_signed(node, operand):
            operands[operand.integers] = as_unsigned(value)
    operands = [value if value is None else shifted.get(value, value) for value in operands]
    outputs = [ir.Value(name=None if value.name else "") for value in node.outputs]
    return ir.Node(node.domain, node.op_type, operands, attributes, outputs=outputs)


def _is_constant(node: ir.Node, operand: Operand) -> bool:
    value = node.inputs[operand.integers]
    return value is not None and is_constant(value)
