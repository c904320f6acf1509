"""Arithmetic with a neutral element gives back the other operand."""

import numpy as np
import onnx_ir as ir

from ortopt.graph.facts import is_exact_in_doubles
from ortopt.graph.match import (
    FLOATS,
    INTEGERS,
    array_of,
    broadcasts_to,
    dims,
    dtype,
    inputs,
    is_constant,
    need,
    rank,
    tensor_of,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded
from ortopt.semantics.op_traits import COMMUTATIVE, NEUTRAL
from ortopt.semantics.opset_changes import BROADCASTS_FROM


class NoopElimination(Elimination):
    """``x + 0``, ``x - 0``, ``x * 1``, ``x / 1``, ``x ** 1``, ``x and true``, ``x or false`` → ``x``.

    The result is exact. So for floats ``x + 0.0`` stays, because it turns -0.0 into +0.0 (and 1/x from -inf into +inf),
    while ``x + (-0.0)`` and ``x - 0.0`` are removed. ONNX Runtime computes powers of integers as doubles, which rounds
    integers above 2^53, so these stay too.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = tuple(NEUTRAL)
    opsets = (BROADCASTS_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Forwarded:
        """A neutral constant that enlarges neither rank nor dimensions."""
        x, other = inputs(root, 2)
        if root.op_type in COMMUTATIVE and not is_constant(other):
            x, other = other, x
        tensor = tensor_of(other)
        need(tensor.size > 0, "the constant is empty", other)
        if len(tensor.shape) > 0:
            need(len(tensor.shape) <= rank(x), "the constant enlarges the rank", other)
            need(broadcasts_to(other, dims(x)), "the constant may enlarge the result", other)
        content = array_of(other)
        neutral = NEUTRAL[root.op_type]
        need(bool(content.reshape(-1)[0] == neutral and np.all(content == neutral)), f"it is not {neutral}", other)
        if neutral == 0 and tensor.dtype in FLOATS:
            negative = np.signbit(content.astype(np.float32))
            if root.op_type == "Add":
                need(bool(negative.all()), "adding +0.0 turns -0.0 into +0.0", other)
            else:
                need(not negative.any(), "subtracting -0.0 turns -0.0 into +0.0", other)
        if root.op_type == "Pow" and dtype(x) in INTEGERS:
            need(is_exact_in_doubles(x), "ONNX Runtime rounds integers above 2^53 here", x)
        need(dtype(x) == dtype(root.outputs[0]), "the type changes", x)
        return Forwarded((root,), x)
