"""``log(1 + eˣ)``, spelled out: as it stands, guarded against overflow, or stable."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    keeps_rank,
    need,
    need_float,
    operand_from,
    operand_scalar,
    producer,
    scalar,
)
from ortopt.transformers.activation._threshold import threshold

NOT_SOFTPLUS = "it is not log(1 + exp(x))"
LARGEST_ARGUMENTS = {FLOAT: 88.0, BFLOAT16: 88.0, DOUBLE: 709.0, FLOAT16: 11.0}
"""What exp can be taken of without overflow, by element type."""

SMALLEST_ARGUMENTS = {FLOAT: 17.0, BFLOAT16: 6.0, DOUBLE: 37.0, FLOAT16: 8.0}
"""From here on the logarithm is x itself, but for the last place."""


class Softplus(Struct, frozen=True):
    """``log(1 + exp(x))``.

    Attributes:
        nodes: The nodes that compute it.
        x: The value that it is computed from.
        overflows: Whether it is infinite where exp(x) is, and not x.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    overflows: bool


def softplus(root: ir.Node) -> Softplus:
    """The softplus that a node ends.

    Args:
        root: A Softplus, a Log, a Where or an Add.

    Raises:
        Refusal: If it is none.
    """
    match root.op_type:
        case "Softplus":
            (x,) = inputs(root, 1)
            return Softplus((root,), x, overflows=False)
        case "Log":
            nodes, x = _logarithm(root)
            return Softplus(nodes, x, overflows=not _is_bounded(x))
        case "Where":
            return _guarded(root)
    return _stable(root)


def _logarithm(log: ir.Node) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """``Log(Exp(x) + 1)``: its nodes and x."""
    total = producer(inputs(log, 1)[0], "Add")
    power = producer(operand_scalar(total, 1.0), "Exp")
    (x,) = inputs(power, 1)
    need_float(x)
    return (power, total, log), x


def _is_bounded(x: ir.Value) -> bool:
    """Whether a value is never so large that exp of it overflows."""
    node = x.producer()
    if is_op(node, "Sigmoid", "Tanh", "HardSigmoid", "Softmax", "Softsign", "Erf", "Sin", "Cos"):
        return True
    if node is not None and is_op(node, "Clip", "Min"):
        bounds = node.inputs[2:3] if is_op(node, "Clip") else node.inputs
        most = LARGEST_ARGUMENTS[dtype(x)]
        return any(bound is not None and is_constant(bound) and _all_at_most(bound, most) for bound in bounds)
    return False


def _all_at_most(bound: ir.Value, most: float) -> bool:
    tensor = bound.const_value
    return tensor is not None and tensor.size == 1 and scalar(bound) <= most


def _guarded(root: ir.Node) -> Softplus:
    """``Where(x > 20, x, Log(Exp(x) + 1))``, as PyTorch defines it."""
    comparison, left, right, x, rest = threshold(root)
    nodes, same = _logarithm(producer(rest, "Log"))
    need(same is x and left is x, NOT_SOFTPLUS, root)
    kind, limit = dtype(x), scalar(right)
    need(keeps_rank(right, x), "the constant would raise the rank", right)
    need(
        SMALLEST_ARGUMENTS[kind] <= limit <= LARGEST_ARGUMENTS[kind],
        "the threshold is not where exp(x) is far above 1, and finite",
        right,
    )
    return Softplus((comparison, *nodes, root), x, overflows=False)


def _stable(root: ir.Node) -> Softplus:
    """``Max(x, 0) + Log(Exp(-Abs(x)) + 1)``, the maximum as a Relu or not."""
    log, other = operand_from(root, "Log")
    nodes, exponent = _logarithm(log)
    negation = producer(exponent, "Neg")
    magnitude = producer(inputs(negation, 1)[0], "Abs")
    (x,) = inputs(magnitude, 1)
    largest = producer(other, "Relu", "Max")
    operands = inputs(largest, len(largest.inputs))
    need(x in operands, NOT_SOFTPLUS, largest)
    if is_op(largest, "Max"):
        need(len(operands) == 2, NOT_SOFTPLUS, largest)
        zeros = [value for value in operands if is_scalar(value, 0.0) and keeps_rank(value, x)]
        need(bool(zeros), NOT_SOFTPLUS, largest)
    return Softplus((magnitude, negation, *nodes, largest, root), x, overflows=False)


__all__ = ["Softplus", "softplus"]
