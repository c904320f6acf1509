"""The base of passes that replace a control flow node by the nodes of its body."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial

import onnx_ir as ir
from msgspec import Struct

from ortopt.context import Context
from ortopt.graph.match import Refusal, is_op
from ortopt.transformer import GraphTransformer


class Inlining(Struct, frozen=True):
    """How a node is replaced by the nodes of its body.

    Attributes:
        inline: Replaces the node, and returns the nodes in its place; it may raise `Conflict`.
        why: The reason, for people; empty where the formula says it.
    """

    inline: Callable[[], list[ir.Node]]
    why: str = ""


class BodyInlining(GraphTransformer):
    """Offers to replace each node of the op that it needs, and each node of the op among the replacements."""

    offers_rewrites = True

    @abc.abstractmethod
    def decide(self, node: ir.Node, context: Context) -> Inlining | None:
        """How a node is replaced; None if it has been removed meanwhile.

        Args:
            node: A node of the op.
            context: The run, for rewrites beside this one.

        Raises:
            Refusal: If the node stays.
        """

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Visit the op's nodes in a graph, and those that come into it by the replacements."""
        begin = context.edit.version
        (op,) = self.needs
        pending = list(reversed(context.edit.index.nodes(graph, op)))
        while pending:
            node = pending.pop()
            try:
                inlining = self.decide(node, context)
            except Refusal as refusal:
                context.refuse(node, refusal)
                continue
            if inlining is None:
                continue
            moved: list[ir.Node] = []
            if context.attempt((node,), partial(_inlined, inlining, moved), inlining.why):
                pending.extend(inner for inner in reversed(moved) if is_op(inner, *self.needs))
        return context.edit.version != begin


def _inlined(inlining: Inlining, moved: list[ir.Node]) -> list[ir.Node]:
    """Replace a node, and add the nodes in its place to `moved`."""
    moved += inlining.inline()
    return moved
