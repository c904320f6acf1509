"""Gemm can read its matrices transposed, without a Transpose."""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    need,
    need_present,
    optional,
    plain_attributes,
    producer,
    users,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The nodes that are replaced, the Gemm, its new operands, and whether it reads them transposed."""

    nodes: tuple[ir.Node, ...]
    gemm: ir.Node
    a: ir.Value
    b: ir.Value
    turned: tuple[int, int]
    turns_c: bool = False


class GemmTransposeFusion(RewriteRule[Found]):
    """``Gemm(Transpose(a), b, c)`` → ``Gemm<transA>(a, b, c)``; ``Transpose(Gemm(a, b, c))`` → ``Gemm(bᵀ, aᵀ, cᵀ)``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Gemm", "Transpose")
    looks_downstream = True
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether C broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A Transpose of a matrix on either side of a Gemm."""
        return _after(root) if root.op_type == "Transpose" else _before(root)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Gemm."""
        c = optional(found.gemm, 2)
        if found.turns_c and c is not None:
            c = _turned(c)
        turns_a, turns_b = (1 if turns else None for turns in found.turned)
        return ops.copied(found.gemm, [found.a, found.b, *([] if c is None else [c])], transA=turns_a, transB=turns_b)


def _flags(gemm: ir.Node) -> tuple[int, int]:
    plain_attributes(gemm)
    return int(ops.Gemm(gemm).transposes_a), int(ops.Gemm(gemm).transposes_b)


def _turns(transpose: ir.Node) -> bool:
    """Whether a Transpose swaps the axes of a matrix; one that keeps them is none."""
    return ops.Transpose(transpose).order_of(2) == (1, 0)


def _before(gemm: ir.Node) -> Found:
    operands, flags = list(inputs(gemm, 2)), list(_flags(gemm))
    fused = 0
    for position, value in enumerate(operands):
        transpose = value.producer()
        if transpose is None or not is_op(transpose, "Transpose") or not _turns(transpose):
            continue
        if value.is_graph_output() or not all(is_op(user, "Gemm") for user in users(value)):
            continue
        (operands[position],) = inputs(transpose, 1)
        flags[position] ^= 1
        fused += 1
    need_present(fused > 0, "no operand comes from a Transpose that only Gemms read", gemm)
    return Found((gemm,), gemm, operands[0], operands[1], (flags[0], flags[1]))


def _after(transpose: ir.Node) -> Found:
    (middle,) = inputs(transpose, 1)
    gemm = producer(middle, "Gemm")
    need(_turns(transpose), "it moves nothing", transpose)
    a, b = inputs(gemm, 2)
    turns_a, turns_b = _flags(gemm)
    c = optional(gemm, 2)
    if c is not None and not is_constant(c):
        need(all(isinstance(dim, int) and dim == 1 for dim in dims(c)), "C would have to be transposed too", c)
    return Found((gemm, transpose), gemm, b, a, (1 - turns_b, 1 - turns_a), turns_c=True)


def _turned(c: ir.Value) -> ir.Value:
    """C as it broadcasts to the transposed product."""
    if all(isinstance(dim, int) and dim == 1 for dim in dims(c)):
        return c
    matrix = array_of(c)
    return constant(matrix.reshape((1,) * (2 - matrix.ndim) + matrix.shape).T.copy(), dtype(c))
