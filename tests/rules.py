"""Rules and transformers of one sentence, for the tests of the framework; and a manager that runs them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

import onnx_ir as ir

from ortopt import Context, GraphTransformer, GraphTransformerManager, RewriteRule, registry
from ortopt.cancellation import CancellationToken
from ortopt.graph.match import inputs
from ortopt.rule import Forwarded
from ortopt.testing import parse


def with_passes(
    more: Iterable[type[GraphTransformer]], installed: registry.Registry | None = None, without: Collection[str] = ()
) -> registry.Registry:
    """A registry of the installed passes, or of those of another registry, without some and with more."""
    given, changed = installed or registry.installed(), registry.Registry()
    for kind in given:
        if kind.name not in without:
            changed.add(kind, given.origin(kind.name))
    for kind in more:
        changed.add(kind, "a test")
    return changed


class Swap(RewriteRule[Forwarded]):
    """One op becomes another of the same operands."""

    roots = ("Relu",)
    becomes: ClassVar[str] = "Neg"
    """The new op, with its domain if that is not ONNX's (``com.microsoft::QuickGelu``)."""

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, len(root.inputs))[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        domain, _, op = self.becomes.rpartition("::")
        return ir.node(op, list(found.nodes[0].inputs), domain=domain)


class SwapByHand(GraphTransformer):
    """Each node of an op becomes one of another op, or its operand; by the context, node after node."""

    op: ClassVar[str] = "Abs"
    becomes: ClassVar[str] = ""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        changed = False
        for node in [node for node in graph if node.op_type == self.op]:
            new = ir.node(self.becomes, node.inputs).outputs[0] if self.becomes else node.inputs[0]
            assert new is not None
            changed |= context.substitute({node.outputs[0]: new}, before=node, origin=(node,))
        return changed


def ops(model: ir.Model) -> list[str]:
    """The ops of the main graph, in order."""
    return [node.op_type for node in model.graph]


def applied(
    model: str | ir.Model,
    *transformers: GraphTransformer,
    level: int = 1,
    cancellation: CancellationToken | None = None,
    **manager: Any,
) -> tuple[GraphTransformerManager, ir.Model]:
    """A manager that has run some transformers on a model, and the model.

    Args:
        model: The model, or its text.
        transformers: The transformers, each registered at the levels that it declares.
        level: The level that is run.
        cancellation: The run's token.
        manager: Arguments of the manager.
    """
    model = parse(model) if isinstance(model, str) else model
    made = GraphTransformerManager(**manager)
    for transformer in transformers:
        made.register(transformer)
    made.apply_transformers(model, level, cancellation=cancellation)
    return made, model
