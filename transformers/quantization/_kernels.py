"""What kernels of integers read and do: operands of sums, softmaxes, and numbers for each column behind a product.

Operands without elements of sums and products may be read nevertheless.

QLinearAdd and QLinearMul go along the innermost axes. An operand of which these axes have no more than one element is a
number to them, which is read before it is known that there are no results: the process ends where there is no number.
That happens where several threads run, and the results would be one run of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import symbolic
from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    dims,
    is_constant,
    is_never_zero,
    is_op,
    is_used_once,
    is_vector_of,
    need,
    same_dim,
    users,
)
from ortopt.patterns.quantized_kernels import SAME_UNIT, Input

ADDITIONS = ("Add", "Sum")


def bias_behind(value: ir.Value, columns: Dim) -> tuple[ir.Node, ir.Value] | tuple[None, None]:
    """The node that adds a number for each column to a value, and these numbers; None where none does.

    Args:
        value: A product of matrices, read by nobody else.
        columns: How many columns it has.
    """
    if not is_used_once(value):
        return None, None
    (user,) = users(value)
    if not is_op(user, *ADDITIONS) or len(user.inputs) != 2 or user.graph is not value.graph:
        return None, None
    others = [operand for operand in user.inputs if operand is not value]
    bias = others[0] if len(others) == 1 else None
    if bias is None or not (is_constant(bias) or bias.is_graph_input()) or not is_vector_of(bias, columns):
        return None, None  # what is computed may be computed behind the product
    return user, bias


class _Operand(Struct, frozen=True):
    """An operand as the kernel would get it, and its dimensions."""

    input: Input
    dims: tuple[Dim, ...]


def operands_of_kernel(one: ir.Value, other: ir.Value, at: ir.Node) -> tuple[Input, Input]:
    """The operands of a sum or a product as its kernel may be given them, whatever their sizes are.

    A constant of one element gets as many axes as the other operand, whose inner axes are then not left out.

    Args:
        one: The integers of the first operand.
        other: Those of the second.
        at: The op of floats.

    Raises:
        Refusal: If one may have no elements where the kernel reads it as a number, or a shape is unknown.
    """
    pair = _Operand(one, dims(one)), _Operand(other, dims(other))
    if not _are_safe(*pair, at):
        pair = _aligned(one, pair[1]), _aligned(other, pair[0])
        need(_are_safe(*pair, at), "the kernel might read an operand without elements, which ends the process", at)
    return pair[0].input, pair[1].input


def _are_safe(one: _Operand, other: _Operand, at: ir.Node) -> bool:
    return _is_safe(one.dims, other.dims, at) and _is_safe(other.dims, one.dims, at)


def _is_safe(own: tuple[Dim, ...], beside: tuple[Dim, ...], at: ir.Node) -> bool:
    """Whether an operand beside another one has elements wherever it is read as a number."""
    if all(is_never_zero(dim, at) for dim in own):
        return True
    if not beside:
        return symbolic.at_least(own[-1], 2)
    may_be_number, inner_elements = False, True
    for dim, other in zip(reversed(own), reversed(beside), strict=False):
        if symbolic.at_least(dim, 2):  # here the kernel begins, or one run of numbers ends
            return inner_elements or not may_be_number
        both = same_dim(dim, other) or other == 1
        if not (both or dim == 1):
            return False
        may_be_number |= not both
        inner_elements &= is_never_zero(dim if both else other, at)
    return False


def _aligned(value: ir.Value, beside: _Operand) -> _Operand:
    """A constant of one element with as many axes as the other operand; anything else as it is."""
    own, rank = dims(value), len(beside.dims)
    if len(own) >= rank or any(dim != 1 for dim in own) or not is_constant(value):
        return _Operand(value, own)
    return _Operand(array_of(value).reshape((1,) * rank), (1,) * rank)


LAST_AXIS_BY_DEFAULT = 13
"""The opset from which on Softmax is along one axis, by default the last."""

LONGEST = 1 << 14
"""Up to this length rounding of the sum moves no share by a step."""

STEPS = 100
"""How many steps of the result, for each term, the kernel multiplies its largest exponential by without overflow."""


def check_step(step: np.ndarray, at: ir.Node | ir.Value) -> None:
    """Refuse a step of the result of which one is no multiple: the kernel cuts off the rest."""
    scale = np.float32(step)
    steps = np.floor(np.float32(1) / scale)
    whole = abs(float(steps) * float(scale) - 1) <= SAME_UNIT
    need(whole, "the kernel takes a step of which one is no multiple for a larger one", at)


def check_length(sizes: Sequence[Dim], axis: int, step: float, at: ir.Node) -> None:
    """Refuse sizes at which the kernel fails, overflows, or rounds otherwise.

    Args:
        sizes: The dimensions of the operand.
        axis: The axis of the Softmax.
        step: The quantization step of the result.
        at: The Softmax.
    """
    need(-len(sizes) <= axis < len(sizes), "the axis is out of range", at)
    need(all(is_never_zero(size, at) for size in sizes), "the kernel fails where there are no elements", at)
    length = sizes[axis]
    if not isinstance(length, int):
        raise Refusal("the length is not known, and of one element the kernel makes 0", at)
    need(length <= LONGEST, "the sum has too many terms", at)
    need(STEPS * length * step >= 1, "the kernel overflows for so few elements", at)
