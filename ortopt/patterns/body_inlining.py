"""Nodes that give way to the nodes of a graph that they hold: the walk over them is the same for all ops."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import onnx_ir as ir

from ortopt.context import Context
from ortopt.graph.match import Refusal, is_op
from ortopt.transformer import GraphTransformer


class Inlining(NamedTuple):
    """What is to become of a node.

    Attributes:
        inline: Puts nodes in its place, and returns them; it may raise `Conflict`.
        why: For people; empty where the formula says it.
    """

    inline: Callable[[], list[ir.Node]]
    why: str = ""


class BodyInlining(GraphTransformer):
    """Offers each node of an op, puts others in its place, and looks at those of the op that come by that."""

    offers_rewrites = True
    op: ClassVar[str]

    @abc.abstractmethod
    def decide(self, node: ir.Node, context: Context) -> Inlining | None:
        """What is to become of a node; None if it has gone meanwhile.

        Args:
            node: A node of the op.
            context: The run, for what is rewritten beside.

        Raises:
            Refusal: If it stays.
        """

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Go over the op's nodes in a graph, and over those that come into it."""
        begin = context.edit.version
        pending = list(reversed(context.edit.index.nodes(graph, self.op)))
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
                pending.extend(inner for inner in reversed(moved) if is_op(inner, self.op))
        return context.edit.version != begin


def _inlined(inlining: Inlining, moved: list[ir.Node]) -> list[ir.Node]:
    """Do it, and write down the nodes that come."""
    moved += inlining.inline()
    return moved


__all__ = ["BodyInlining", "Inlining"]
