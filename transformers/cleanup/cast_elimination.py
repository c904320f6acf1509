"""A Cast to the type that a value already has only copies it."""

import onnx_ir as ir

from ortopt.graph.match import attribute, dtype, inputs, need
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded

_TYPES = frozenset(map(int, ir.DataType))


class CastElimination(Elimination):
    """``Cast(x, to=type of x)`` → ``x``, and so for ``CastLike``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Cast", "CastLike")
    opsets = (6, NEWEST_OPSET)  # before, the type was spelled as text, and ONNX Runtime had no kernel

    def match(self, root: ir.Node) -> Forwarded:
        """A cast whose source and target types are known and the same."""
        if root.op_type == "Cast":
            (x,) = inputs(root, 1)
            number = attribute(root, "to", 0)
            need(number in _TYPES, "its target is no element type", root)
            target = ir.DataType(number)
        else:
            x, like = inputs(root, 2)
            target = dtype(like)
        need(dtype(x) == target, "the type changes", x)
        return Forwarded((root,), x)
