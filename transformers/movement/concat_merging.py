"""A Concat of a Concat copies the inner operands twice."""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import inputs, is_op, is_used_once, need
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

MAX_OPERANDS = 256
"""More are not joined at once: a chain of thousands would be copied again with each link."""


class Found(Struct, frozen=True):
    """The Concats, and all that they join."""

    nodes: tuple[ir.Node, ...]
    operands: tuple[ir.Value, ...]


class ConcatMerging(RewriteRule[Found]):
    """``Concat(Concat(a, b), c)`` along one axis → ``Concat(a, b, c)``."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    roots = ("Concat",)
    opsets = (4, NEWEST_OPSET)  # before, the axis could be left out
    lookback = 1

    def match(self, root: ir.Node) -> Found:
        """An operand that is a Concat along the same axis, and that no other node uses."""
        operands: list[ir.Value] = []
        inner: list[ir.Node] = []
        for value in inputs(root, len(root.inputs)):
            node = value.producer()
            if (
                node is None
                or not is_op(node, "Concat")
                or node.graph is not root.graph
                or not is_used_once(value)
                or not ops.Concat(node).is_along(ops.Concat(root), value)
            ):
                operands.append(value)
            else:
                operands.extend(inputs(node, len(node.inputs)))
                inner.append(node)
        need(bool(inner), "no operand is a Concat along this axis for it alone", root)
        need(len(operands) <= MAX_OPERANDS, "there are many operands", root)
        return Found((*inner, root), tuple(operands))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the one Concat."""
        return ops.copied(found.nodes[-1], found.operands)
