"""Which execution provider runs a node: the preferred one that can, and that the user lets have it.

A provider can run a node in three ways (`ortopt.analysis.kernels`): by a kernel of its own, after ONNX Runtime's
automatic casts, or expanded into ops that it can run. A node with graphs below it needs that of all nodes there, from
the provider or from the CPU provider, which is part of every session. A call of a local function needs it of the body.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import onnx_ir as ir

from ortopt.analysis import kernels
from ortopt.analysis import providers as execution
from ortopt.analysis.kernels import CPU
from ortopt.graph import scope
from ortopt.graph.index import op_key
from ortopt.onnx_ir_internals import attributes_of
from ortopt.partition.settings import PartitionOptions
from ortopt.semantics import GROUP_DOMAIN, subgraphs
from ortopt.semantics.domains import MICROSOFT

_NEVER_IN_FUNCTIONS: Final = frozenset({(MICROSOFT, "QLinearConcat")})
"""Ops that ONNX Runtime 1.31 loads in a graph only: in a function it takes QLinearConcat's result for a float."""


class Placement:
    """Answers for one model which provider runs a node.

    Args:
        model: The model; types are inferred, and `scope.attach` has seen it.
        options: What the user wants.
    """

    def __init__(self, model: ir.Model, options: PartitionOptions) -> None:
        self._functions = model.functions
        self._options = options
        self._providers = options.candidates
        self._allow = _by_op(options.allow)
        self._deny = _by_op(options.deny)
        self._bodies: dict[tuple[ir.OperatorIdentifier, str], bool] = {}

    def provider_of(self, node: ir.Node) -> str | None:
        """The provider that runs a node and everything below it, or None where the host must.

        Args:
            node: A node of a graph of the model.
        """
        if node.domain == GROUP_DOMAIN:
            return None
        return next((name for name in self._providers if self._runs(name, node)), None)

    def providers_of(self, node: ir.Node) -> tuple[str, ...]:
        """All providers that can run a node, in order of preference."""
        if node.domain == GROUP_DOMAIN:
            return ()
        return tuple(name for name in self._providers if self._runs(name, node))

    def _runs(self, provider: str, node: ir.Node) -> bool:
        if not self._has_kernel(provider, node):
            return False
        if provider != CPU and not all(map(_is_numeric_tensor, (*node.inputs, *node.outputs))):
            return False  # a device holds tensors of numbers: sequences, optionals and strings stay with the CPU
        if not node.attributes:
            return True
        return self._runs_all(provider, subgraphs(node))

    def _runs_all(self, provider: str, graphs: Iterable[ir.Graph]) -> bool:
        """Whether a provider, or the CPU provider, has kernels for all nodes of graphs and below them."""
        return all(
            self._has_kernel(provider, node) or self._has_kernel(CPU, node)
            for outermost in graphs
            for graph in scope.below(outermost)
            for node in graph
        )

    def _has_kernel(self, provider: str, node: ir.Node) -> bool:
        identifier = node.op_identifier()
        if identifier in self._functions:
            # ONNX Runtime 1.31 loads no function that hands an optional argument on to another function.
            if node.domain == GROUP_DOMAIN or any(map(_is_optional, node.inputs)):
                return False
            return self._runs_body(provider, identifier)
        if (node.domain, node.op_type) in _NEVER_IN_FUNCTIONS:
            return False
        if "sparse_value" in attributes_of(node):  # an initializer of the model; before opset 11 there is no such node
            return False
        imports = scope.of(scope.graph_of(node)).opset_imports
        how = kernels.support(provider, node, imports.get(node.domain, 1))
        if self._options.predicate is not None:
            return self._agreed(provider, node) and self._options.predicate(node, provider, how)
        return how is not None and self._agreed(provider, node)

    def _agreed(self, provider: str, node: ir.Node) -> bool:
        op = op_key(node.domain, node.op_type)
        if node.op_type == "Constant" and not node.domain:
            return True
        allowed = not self._allow or _names(self._allow, op, provider)
        return allowed and not _names(self._deny, op, provider)

    def _runs_body(self, provider: str, identifier: ir.OperatorIdentifier) -> bool:
        known = self._bodies.get((identifier, provider))
        if known is None:
            self._bodies[identifier, provider] = False  # should it call itself
            known = self._runs_all(provider, [self._functions[identifier].graph])
            self._bodies[identifier, provider] = known
        return known


def _is_optional(value: ir.Value | None) -> bool:
    return value is not None and isinstance(value.type, ir.OptionalType)


def _is_numeric_tensor(value: ir.Value | None) -> bool:
    return value is None or (isinstance(value.type, ir.TensorType | None) and value.dtype is not ir.DataType.STRING)


def _by_op(entries: Iterable[str]) -> dict[str, set[str]]:
    """Providers by op; the empty string stands for all."""
    found: dict[str, set[str]] = {}
    for entry in entries:
        op, at, provider = entry.partition("@")
        found.setdefault(op, set()).add(execution.normalize(provider) if at else "")
    return found


def _names(listed: dict[str, set[str]], op: str, provider: str) -> bool:
    return not listed.get(op, set()).isdisjoint(("", provider))
