"""A product that is spelled as an Einsum is one of matrices: other passes know it, and its kernel is faster."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.signs import is_never_below_zero
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOATS, INTEGERS, dims, dtype, inputs, is_constant, is_never_zero, need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.einsum import Equation, Operand, Step, equation_of, product_of
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Arrangement(Struct, frozen=True):
    """The Einsum; how its operands are arranged, in the order in which they are multiplied; the op, and what follows.

    There is no op where it has one operand. Einsum gives +0.0 for each product that is a zero.
    """

    nodes: tuple[ir.Node, ...]
    operands: tuple[tuple[ir.Value, tuple[Step, ...]], ...]
    op: str = ""
    after: tuple[Step, ...] = ()
    clears_signs: bool = False


class EinsumDecomposition(RewriteRule[Arrangement]):
    """``Einsum(a, b)`` → ``MatMul`` or ``Mul`` between Transposes and Reshapes; ``Einsum(a)`` → ``Transpose``, a sum.

    It runs at level 2, because it adds nodes, and because attention and rotary embeddings are recognised in its
    results.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("gather_einsum_reordering", "relative_key_conversion")
    roots = ("Einsum",)
    opsets = (12, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Arrangement:
        """One operand, or two whose common letters have the same sizes."""
        equation = equation_of(root)
        operands = tuple(value for value in root.inputs if value is not None)
        need(len(operands) < 3, "it is a product of more than two operands", root)
        need(dtype(operands[0]) in FLOATS | INTEGERS, "it is of no numbers", operands[0])
        found = _single(root, equation) if len(operands) == 1 else _double(root, operands, equation)
        steps = [step for _, steps in found.operands for step in steps]
        sums = any(step.op == "ReduceSum" for step in steps)
        need(not sums or dtype(operands[0]) in FLOATS, "ONNX Runtime sums integers as doubles", operands[0])
        return found

    def rewrite(self, found: Arrangement) -> ir.Node | ir.Value:
        """Build the product of the arranged operands."""
        version = opset(found.nodes[0])
        values = [_arranged(value, steps, version) for value, steps in found.operands]
        result = ir.node(found.op, values).outputs[0] if found.op else values[0]
        if found.clears_signs:
            zero = constant(np.zeros(()), dtype(found.operands[0][0]))
            result = ir.node("Add", [result, zero]).outputs[0]
        return _arranged(result, found.after, version)


def _single(root: ir.Node, equation: Equation) -> Arrangement:
    (letters,) = equation.terms
    summed = Operand(letters).without([each for each in letters if each not in equation.result], "ReduceSum")
    (value,) = inputs(root, 1)
    return Arrangement((root,), ((value, summed.ordered(equation.result).steps),))


def _double(root: ir.Node, operands: Sequence[ir.Value], equation: Equation) -> Arrangement:
    fixed = [is_constant(value) for value in operands]
    product = product_of(equation, [dims(value) for value in operands], fixed, partial(is_never_zero, at=root))
    first, second = operands[::-1] if product.swapped else operands
    arranged = ((first, product.left.steps), (second, product.right.steps))
    signed = dtype(first) in FLOATS and not all(is_never_below_zero(value) for value in operands)
    return Arrangement((root,), arranged, product.op, product.after, product.op == "Mul" and signed)


def _arranged(value: ir.Value, steps: Sequence[Step], version: int) -> ir.Value:
    for step in steps:
        value = _node(value, step, version).outputs[0]
    return value


def _node(value: ir.Value, step: Step, version: int) -> ir.Node:
    if step.op == "Transpose":
        return ir.node("Transpose", [value], {"perm": step.numbers})
    if step.op == "Reshape":
        return ir.node("Reshape", [value, constant(np.array(step.numbers, np.int64))])
    flags = {"keepdims": 0} if step.op == "ReduceSum" else {}
    return ops.node_along(step.op, value, step.numbers, version, flags)
