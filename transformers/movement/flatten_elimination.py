"""A Flatten of a matrix into the same matrix only copies."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.match import dims, inputs, need
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule


class FlattenElimination(RewriteRule[Forwarded]):
    """``Flatten`` of a matrix into the same matrix → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Flatten",)

    def match(self, root: ir.Node) -> Forwarded:
        """Two dimensions, flattened between them, or beside one of size 1."""
        (x,) = inputs(root, 1)
        shape = dims(x, rank=2)
        axis = ops.Flatten(root).axis
        result = (symbolic.product(shape[:axis]), symbolic.product(shape[axis:]))
        need(symbolic.same_shape(result, shape), "the shape may change", root)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value
