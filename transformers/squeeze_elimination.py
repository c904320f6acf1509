"""A Squeeze of a shape without 1s only copies."""

import onnx_ir as ir

from ortopt.graph import symbolic
from ortopt.graph.facts import contents
from ortopt.graph.match import attribute, dims, need, opset, optional, values
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule, Root

AXES_ARE_AN_INPUT = 13


class SqueezeElimination(RewriteRule[Root]):
    """``Squeeze`` of no axis → ``x``: without axes, of a shape in which no dimension is 1."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Squeeze",)

    def match(self, root: ir.Node) -> Root:
        """No axes, and no dimension that may be 1."""
        (x,) = values(root, 1)
        if opset(root) < AXES_ARE_AN_INPUT:
            empty: tuple[int, ...] = ()
            named = bool(attribute(root, "axes", empty))
        else:
            axes = optional(root, 1)
            named = axes is not None and contents(axes) != ()
        need(not named, "it names axes", root)
        need(all(symbolic.different(dim, 1) for dim in dims(x)), "a dimension may be 1", x)
        return Root((root,), x)

    def rewrite(self, found: Root) -> ir.Value:
        """Let its users read what it copies."""
        return found.value
