"""Nodes that give back one of their operands: they only copy."""

import math
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.facts import is_exact_in_doubles
from ortopt.graph.match import (
    FLOATS,
    INTEGERS,
    array_of,
    attribute,
    broadcasts_to,
    dims,
    dtype,
    inputs,
    is_constant,
    need,
    opset,
    optional,
    rank,
    static_dims,
    tensor_of,
)
from ortopt.onnx_ir_internals import is_needed
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded, Match, RewriteRule
from ortopt.semantics.op_traits import COMMUTATIVE, NEUTRAL
from ortopt.semantics.opset_changes import BROADCASTS_FROM


class IdentityElimination(Elimination):
    """``Identity(x)`` → ``x``."""

    roots = ("Identity",)

    def match(self, root: ir.Node) -> Forwarded:
        """Any Identity; the framework keeps those that give a graph output its name."""
        (x,) = inputs(root, 1)
        return Forwarded((root,), x)


class DropoutElimination(RewriteRule[Match]):
    """``Dropout(x)`` at inference, or of a ratio of 0, → ``x``; its mask says that everything stays."""

    roots = ("Dropout",)

    def match(self, root: ir.Node) -> Match:
        """A Dropout that surely does not train or drop, with a mask that is unused or of fixed shape."""
        (data,) = inputs(root, 1)
        version = opset(root)
        mask = root.outputs[1] if len(root.outputs) > 1 and is_needed(root.outputs[1]) else None
        if version >= 12:
            ratio, mode = optional(root, 1), optional(root, 2)
            drops = ratio is None or not is_constant(ratio) or bool(array_of(ratio).any())
            need(
                mode is None or not (drops or mask is not None) or not array_of(mode).any(),
                "it is in training mode",
                root,
            )
        elif version < 7:
            need(attribute(root, "is_test", 0) != 0, "it is in training mode", root)
        if mask is None:
            return Match((root,), lambda: {root.outputs[0]: data})
        # ONNX Runtime fills it with false, ONNX's reference with true.
        need(version >= 12, "before opset 12 runtimes disagree about the mask", mask)
        shape = static_dims(data)
        return Match((root,), lambda: {root.outputs[0]: data, mask: constant(np.ones(shape, dtype=np.bool_))})


_BOUNDS: Final = {"Max": -math.inf, "Min": math.inf}
_NEUTRAL: Final = {**NEUTRAL, **_BOUNDS}


class NoopElimination(Elimination):
    """``x + 0``, ``x - 0``, ``x * 1``, ``x / 1``, ``x ** 1``, ``x and true``, ``x or false``, ``Max(x, -inf)`` → ``x``.

    The result is exact. So for floats ``x + 0.0`` stays, because it turns -0.0 into +0.0 (and 1/x from -inf into +inf),
    while ``x + (-0.0)`` and ``x - 0.0`` are removed. ONNX Runtime computes powers of integers as doubles, which rounds
    integers above 2^53, so these stay too.
    """

    roots = tuple(_NEUTRAL)
    opsets = (BROADCASTS_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Forwarded:
        """A neutral constant that enlarges neither rank nor dimensions."""
        x, other = inputs(root, 2)
        need(len(root.inputs) == 2, "it has more operands", root)
        if (root.op_type in COMMUTATIVE or root.op_type in _BOUNDS) and not is_constant(other):
            x, other = other, x
        tensor = tensor_of(other)
        need(tensor.size > 0, "the constant is empty", other)
        if len(tensor.shape) > 0:
            need(len(tensor.shape) <= rank(x), "the constant enlarges the rank", other)
            need(broadcasts_to(other, dims(x)), "the constant may enlarge the result", other)
        content = array_of(other)
        neutral = _NEUTRAL[root.op_type]
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
