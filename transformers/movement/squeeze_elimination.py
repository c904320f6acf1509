"""A Squeeze of a shape without 1s only copies."""

import onnx_ir as ir

from ortopt.graph import symbolic
from ortopt.graph.facts import contents
from ortopt.graph.match import attribute, dims, inputs, need, opset, optional
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM


class SqueezeElimination(RewriteRule[Forwarded]):
    """``Squeeze`` of no axis → ``x``: without axes, of a shape in which no dimension is 1."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Squeeze",)

    def match(self, root: ir.Node) -> Forwarded:
        """No axes, and no dimension that may be 1."""
        (x,) = inputs(root, 1)
        if opset(root) < AXES_ARE_AN_INPUT_FROM[root.op_type]:
            empty: tuple[int, ...] = ()
            named = bool(attribute(root, "axes", empty))
        else:
            axes = optional(root, 1)
            named = axes is not None and contents(axes) != ()
        need(not named, "it names axes", root)
        need(all(symbolic.provably_different(dim, 1) for dim in dims(x)), "a dimension may be 1", x)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value
