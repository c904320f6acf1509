"""Operands without elements of quantized sums and products, which ONNX Runtime's kernels may read nevertheless.

QLinearAdd and QLinearMul go along the innermost axes. An operand of which these axes have no more than one element is a
number to them, which is read before it is known that there are no results: the process ends where there is no number.
That happens where several threads run, and the results would be one run of numbers.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import symbolic
from ortopt.graph.match import Dim, array_of, dims, is_constant, is_never_zero, need, same_dim
from ortopt.patterns.quantized_kernels import Input


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
