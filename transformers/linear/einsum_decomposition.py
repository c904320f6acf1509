"""A product that is spelled as an Einsum is one of matrices: other passes know it, and its kernel is faster."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.signs import is_never_below_zero
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOATS, INTEGERS, dims, dtype, is_constant, is_never_zero, need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.einsum import Operand, Step, equation_of, product_of
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule


class EinsumDecomposition(RewriteRule[Match]):
    """``Einsum(a, b)`` → ``MatMul`` or ``Mul`` between Transposes and Reshapes; ``Einsum(a)`` → ``Transpose``, a sum.

    It runs at level 2, because it adds nodes, and because attention and rotary embeddings are recognised in its
    results.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("gather_einsum_reordering", "relative_key_conversion")
    roots = ("Einsum",)
    opsets = (12, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """One operand, or two whose common letters have the same sizes."""
        equation = equation_of(root)
        operands = tuple(value for value in root.inputs if value is not None)
        need(len(operands) < 3, "it is a product of more than two operands", root)
        need(dtype(operands[0]) in FLOATS | INTEGERS, "it is of no numbers", operands[0])
        after: tuple[Step, ...] = ()
        op, clears_signs = "", False  # Einsum gives +0.0 for each product that is a zero
        if len(operands) == 1:
            (letters,) = equation.terms
            summed = Operand(letters).without([each for each in letters if each not in equation.result], "ReduceSum")
            arranged = [(operands[0], summed.ordered(equation.result).steps)]
        else:
            fixed = [is_constant(value) for value in operands]
            shapes = [dims(value) for value in operands]
            product = product_of(equation, shapes, fixed, partial(is_never_zero, at=root))
            first, second = operands[::-1] if product.swapped else operands
            arranged = [(first, product.left.steps), (second, product.right.steps)]
            op, after = product.op, product.after
            signed = dtype(first) in FLOATS and not all(is_never_below_zero(value) for value in operands)
            clears_signs = op == "Mul" and signed
        sums = any(step.op == "ReduceSum" for _, steps in arranged for step in steps)
        need(not sums or dtype(operands[0]) in FLOATS, "ONNX Runtime sums integers as doubles", operands[0])

        def build() -> ir.Value:
            version = opset(root)
            values = [_arranged(value, steps, version) for value, steps in arranged]
            result = ir.node(op, values).outputs[0] if op else values[0]
            if clears_signs:
                zero = constant(np.zeros(()), dtype(operands[0]))
                result = ir.node("Add", [result, zero]).outputs[0]
            return _arranged(result, after, version)

        return Match((root,), build)


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
