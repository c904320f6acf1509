"""What runs a node: a group, a plan of plans, a session of ONNX Runtime, or onnx's reference implementation.

Nodes that one step can run together are a block; the blocks come in an order in which all of them can run.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis import kernels, shapes
from ortopt.errors import UsageError
from ortopt.graph import facts, scope
from ortopt.runtime.execution.group_runner import GroupContext, GroupRunner
from ortopt.runtime.execution.group_spec import GroupSpec, SpecLibrary
from ortopt.runtime.planning.execution_plan import dependencies
from ortopt.runtime.run_settings import RunType
from ortopt.semantics.opset_changes import SCAN_HAS_NO_BATCH_FROM

_CONTROL: Final = frozenset(("", op) for op in semantics.CONTROL_FLOW - {"SequenceMap"})  # which runs as a whole
_OLDEST_CONTROL: Final = {"Scan": SCAN_HAS_NO_BATCH_FROM}


class NodeKind(enum.IntEnum):
    """What runs a node; nodes that run together are run by the last of what would run each."""

    GROUP = 0
    CONTROL = 1
    SESSION = 2
    FOREIGN = 3
    """A session, if the caller's options bring a library that has the op."""
    HOST = 4


GATHERED: Final = frozenset({NodeKind.HOST, NodeKind.SESSION, NodeKind.FOREIGN})
"""Kinds of which neighbours share one session, or one evaluator."""


@dataclass(eq=False)
class NodeClassifier:
    """Finds the kinds of a model's nodes.

    Attributes:
        model: The model.
        library: The model's groups.
        providers: The caller's execution providers.
        host_ops: Users' own ops, subclasses of ``OpRun``.
        on_host: Whether no provider is asked.
    """

    model: ir.Model
    library: SpecLibrary
    providers: Sequence[str]
    host_ops: Sequence[type]
    _: KW_ONLY
    on_host: bool

    def __post_init__(self) -> None:
        self._providers = tuple(dict.fromkeys((*self.providers, kernels.CPU)))
        self._host_keys = {(op.op_domain, op.__name__) for op in self.host_ops}  # type: ignore[attr-defined]
        self._opset = self.model.opset_imports.get("", 1)
        self._function_kinds: dict[ir.OperatorIdentifier, NodeKind] = {}
        self._kinds: dict[ir.Node, NodeKind] = {}

    def kind(self, node: ir.Node) -> NodeKind:
        """What runs a node.

        Raises:
            UsageError: Nothing does: it holds groups, and is executed by nothing that can run them.
        """
        known = self._kinds.get(node)
        if known is None:
            known = self._kinds[node] = self._decide(node)
        return known

    def _decide(self, node: ir.Node) -> NodeKind:
        if node.domain == semantics.GROUP_DOMAIN and self.library.group_of(node) is not None:
            return NodeKind.GROUP
        inside = (
            {self.kind(inner) for held in semantics.subgraphs(node) for inner in held} if node.attributes else set()
        )
        if inside & {NodeKind.GROUP, NodeKind.CONTROL, NodeKind.HOST, NodeKind.FOREIGN} or (inside and self.on_host):
            # The bodies are executed here: onnx's reference implementation stacks a Loop's results up wrongly.
            if (node.domain, node.op_type) in _CONTROL and self._opset >= _OLDEST_CONTROL.get(node.op_type, 1):
                return NodeKind.CONTROL
            if inside & {NodeKind.GROUP, NodeKind.CONTROL}:
                raise UsageError(f"node {node.name!r}: {node.op_type} at opset {self._opset} cannot hold groups")
        if self.on_host or (node.domain, node.op_type) in self._host_keys:
            return NodeKind.HOST
        return max((self._own_kind(node), *inside))

    def _own_kind(self, node: ir.Node) -> NodeKind:
        """The same, subgraphs apart."""
        identifier = node.op_identifier()
        if identifier in self.model.functions:
            if identifier not in self._function_kinds:
                self._function_kinds[identifier] = NodeKind.SESSION  # one that calls itself is refused elsewhere
                kinds = {self._in_function(inner) for inner in self.model.functions[identifier]}
                self._function_kinds[identifier] = max(kinds, default=NodeKind.SESSION)
            return self._function_kinds[identifier]
        return self._by_kernel(node, self.model.opset_imports.get(node.domain, 1))

    def _in_function(self, node: ir.Node) -> NodeKind:
        """What runs a node of a function, whose types need not be known."""
        return max(
            NodeKind.HOST if (inner.domain, inner.op_type) in self._host_keys else self._own_kind(inner)
            for inner in scope.with_nested(node)
        )

    def _by_kernel(self, node: ir.Node, opset: int) -> NodeKind:
        typed = all(value is None or value.type is not None for value in node.inputs)
        for provider in self._providers:
            if provider not in (kernels.CPU, kernels.CUDA):
                return NodeKind.SESSION  # its kernels are not in our tables: it is asked
            if kernels.support(provider, node, opset) is not None:
                return NodeKind.SESSION
        if kernels.schema(node.domain, node.op_type, opset) is None:
            return NodeKind.FOREIGN
        # An unknown type is no reason for the host: ONNX Runtime infers what we did not, and is asked.
        return NodeKind.HOST if typed else NodeKind.SESSION


Block = tuple[NodeKind, list[ir.Node]]
"""Nodes that one step runs, and what runs them."""


def blocks_of(
    nodes: Sequence[ir.Node],
    operands: Mapping[ir.Node, Sequence[ir.Value]],
    kind: Callable[[ir.Node], NodeKind],
    functions: Mapping[ir.OperatorIdentifier, ir.Function],
) -> Iterator[Block]:
    """Nodes of a graph as blocks: as long a run of a kind as there is.

    Args:
        nodes: The nodes, in topological order.
        operands: What each of them reads.
        kind: What runs a node.
        functions: The model's local functions.
    """
    number = {node: i for i, node in enumerate(nodes)}
    makers = ({value.producer() for value in operands[node]} for node in nodes)
    needs = ({number[maker] for maker in made if maker in number} for made in makers)
    waits, following = dependencies(needs, (semantics.is_random(node, functions) for node in nodes))
    ready: dict[NodeKind, list[int]] = {kind: [] for kind in NodeKind}
    for i, count in enumerate(waits):
        if count == 0:
            heapq.heappush(ready[kind(nodes[i])], i)
    done = 0
    while done < len(nodes):
        first = min((waiting[0], kind_) for kind_, waiting in ready.items() if waiting)[1]
        block: list[ir.Node] = []
        while ready[first] and (not block or first in GATHERED):
            i = heapq.heappop(ready[first])
            block.append(nodes[i])
            for j in following[i]:
                waits[j] -= 1
                if waits[j] == 0:
                    heapq.heappush(ready[kind(nodes[j])], j)
        done += len(block)
        yield first, block


class ModelPlanning:
    """A model on its way to a plan.

    Args:
        model: The model.
        context: What its groups share.

    Attributes:
        context: What its groups share.
        library: Describes its groups.
        kind: Says what runs a node.
        groups: The groups so far, those apart that are versions of others.
        versions: The groups that are versions of others, each with the group that never runs when it does.
    """

    def __init__(self, model: ir.Model, context: GroupContext) -> None:
        self._model = model
        self.context = context
        self.library = SpecLibrary(model)
        on_host = context.settings.run_type is RunType.HOST
        classifier = NodeClassifier(model, self.library, context.providers, context.host_ops, on_host=on_host)
        self.kind: Callable[[ir.Node], NodeKind] = classifier.kind
        self.groups: list[GroupRunner] = []
        self.versions: list[tuple[GroupRunner, GroupRunner]] = []
        self._leftovers = 0
        self._inferred = False

    def new_group(
        self, spec: GroupSpec, *, on_host: bool = False, version_of: GroupRunner | None = None
    ) -> GroupRunner:
        """Make a group that can be run.

        Args:
            spec: What it computes.
            on_host: Whether no provider is asked.
            version_of: The group that never runs when it does: both have the same number of threads, and it is special
                already.
        """
        group = GroupRunner(spec, self.context, on_host=on_host, specializes=version_of is None)
        if version_of is None:
            self.groups.append(group)
        else:
            self.versions.append((group, version_of))
        return group

    def leftover_name(self) -> str:
        """A name for nodes that no group took."""
        self._leftovers += 1
        return f"leftover_{self._leftovers - 1}"

    def inferred(self, values: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """Values of which all is known that can be: no iterations at all stack up to a shape, too."""
        if not self._inferred and any(facts.shape_of(value) is None for value in values):
            self._inferred = True
            shapes.infer_model(self._model)
        return tuple(values)
