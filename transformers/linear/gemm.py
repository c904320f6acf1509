"""Gemm adds a matrix, reads its operands transposed, and applies an activation, for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    broadcasts_to,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    need,
    need_float32,
    need_present,
    operand_from,
    optional,
    plain_attributes,
    producer,
    same_type,
    users,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

ACTIVATIONS = (
    *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu"),
    *("Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)
"""Those that the kernel knows."""


class GemmSumFusion(RewriteRule[Match]):
    """``Sum(Gemm(a, b), c)`` or ``Add`` → ``Gemm(a, b, c)``."""

    roots = ("Add", "Sum")
    needs = ("Gemm",)
    opsets = (8, NEWEST_OPSET)  # before, Sum did not broadcast
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A Gemm without a C, and one other summand that broadcasts to its product."""
        need(len(root.inputs) == 2, "there are not two summands", root)
        gemm, c = operand_from(root, "Gemm")
        need(optional(gemm, 2) is None, "the Gemm has a C", gemm)
        product = gemm.outputs[0]
        need(c is not product, "the product is added to itself", gemm)
        need(same_type(c, product), "the types differ", c)
        need(broadcasts_to(c, dims(product, rank=2)), "Gemm broadcasts C one way only", c)
        plain_attributes(gemm)
        # The old beta scaled nothing.
        return Match((gemm, root), lambda: ops.copied(gemm, [*inputs(gemm, 2), c], beta=None))


class GemmTransposeFusion(RewriteRule[Match]):
    """``Gemm(Transpose(a), b, c)`` → ``Gemm<transA>(a, b, c)``; ``Transpose(Gemm(a, b, c))`` → ``Gemm(bᵀ, aᵀ, cᵀ)``."""

    roots = ("Gemm", "Transpose")
    needs = ("Gemm",)
    looks_downstream = True
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether C broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A Transpose of a matrix on either side of a Gemm."""
        return _after(root) if root.op_type == "Transpose" else _before(root)


class GemmActivationFusion(RewriteRule[Match]):
    """``Activation(Gemm(a, b, c))`` → ``com.microsoft.FusedGemm<activation>(a, b, c)``."""

    levels = (TransformerLevel.LEVEL2,)
    numerics = Numerics.REORDERED
    roots = ACTIVATIONS
    needs = ("Gemm",)
    opsets = (7, NEWEST_OPSET)  # before, Gemm broadcasts by an attribute
    providers = (CPU,)
    produces = ((MICROSOFT, "FusedGemm"),)

    def match(self, root: ir.Node) -> Match:
        """A Gemm in single precision, whose result no other node needs."""
        gemm = producer(inputs(root, 1)[0], "Gemm")
        a, _ = inputs(gemm, 2)
        need_float32(a, "the kernel is")
        plain_attributes(gemm)
        parameters = ops.Activation(root).parameters
        return Match((gemm, root), lambda: _activated(gemm, root.op_type, parameters))


def _activated(gemm: ir.Node, activation: str, parameters: dict[str, float]) -> ir.Node:
    """The Gemm with an activation."""
    node = ir.node("FusedGemm", gemm.inputs, domain=MICROSOFT)
    node.attributes.update(gemm.attributes)
    node.attributes["activation"] = ir.AttrString("activation", activation)
    for name, number in parameters.items():
        node.attributes[f"activation_{name}"] = ir.AttrFloat32(f"activation_{name}", number)
    return node


def _flags(gemm: ir.Node) -> tuple[int, int]:
    plain_attributes(gemm)
    return int(ops.Gemm(gemm).transposes_a), int(ops.Gemm(gemm).transposes_b)


def _turns(transpose: ir.Node) -> bool:
    """Whether a Transpose swaps the axes of a matrix; one that keeps them is none."""
    return ops.Transpose(transpose).order_of(2) == (1, 0)


def _before(gemm: ir.Node) -> Match:
    operands, flags = list(inputs(gemm, 2)), list(_flags(gemm))
    fused = 0
    for position, value in enumerate(operands):
        transpose = value.producer()
        if not is_op(transpose, "Transpose") or not _turns(transpose):
            continue
        if value.is_graph_output() or not all(is_op(user, "Gemm") for user in users(value)):
            continue
        (operands[position],) = inputs(transpose, 1)
        flags[position] ^= 1
        fused += 1
    need_present(fused > 0, "no operand comes from a Transpose that only Gemms read", gemm)
    return Match((gemm,), lambda: _turned(gemm, operands, flags, optional(gemm, 2)))


def _after(transpose: ir.Node) -> Match:
    (middle,) = inputs(transpose, 1)
    gemm = producer(middle, "Gemm")
    need(_turns(transpose), "it moves nothing", transpose)
    a, b = inputs(gemm, 2)
    turns_a, turns_b = _flags(gemm)
    c = optional(gemm, 2)
    if c is not None and not is_constant(c):
        need(all(isinstance(dim, int) and dim == 1 for dim in dims(c)), "C would have to be transposed too", c)
    flags = (1 - turns_b, 1 - turns_a)
    return Match((gemm, transpose), lambda: _turned(gemm, (b, a), flags, None if c is None else _turned_c(c)))


def _turned(gemm: ir.Node, operands: Sequence[ir.Value], flags: Sequence[int], c: ir.Value | None) -> ir.Node:
    """The Gemm of other operands, of which flags say whether they are read transposed."""
    turns_a, turns_b = (flag or None for flag in flags)
    return ops.copied(gemm, [*operands, *([] if c is None else [c])], transA=turns_a, transB=turns_b)


def _turned_c(c: ir.Value) -> ir.Value:
    """C as it broadcasts to the transposed product."""
    if all(isinstance(dim, int) and dim == 1 for dim in dims(c)):
        return c
    matrix = array_of(c)
    return constant(matrix.reshape((1,) * (2 - matrix.ndim) + matrix.shape).T.copy(), dtype(c))
