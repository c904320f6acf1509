"""A plug-in: one pass of somebody else's, found by its entry point."""

from typing import NamedTuple

import onnx_ir as ir

from ortopt import RewriteRule, TransformerLevel
from ortopt.graph.match import producer


class Found(NamedTuple):
    """The two nodes, and the inner one's result."""

    nodes: tuple[ir.Node, ...]
    inner: ir.Value


class AbsAbsElimination(RewriteRule[Found]):
    """``Abs(Abs(x))`` → ``Abs(x)``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Abs",)

    def match(self, root: ir.Node) -> Found:
        """An Abs of an Abs."""
        return Found((root,), producer(root.inputs[0], "Abs").outputs[0])

    def rewrite(self, found: Found) -> ir.Value:
        """The inner one says it all."""
        return found.inner
