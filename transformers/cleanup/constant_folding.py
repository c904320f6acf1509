"""Nodes that give the same in every run are computed once, unless that makes the file too large."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ortopt import semantics
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, is_used, plain_attributes, shape_of
from ortopt.options import MEGABYTE
from ortopt.patterns.unpacked_weights import packed_parts
from ortopt.transformer import Context, GraphTransformer

WORKING_BYTES = 64 * MEGABYTE
"""What a value between two constants may hold beyond the largest constant that is there."""

MAX_BYTES = 4_000 * MEGABYTE
"""The same where the user allows any growth: a hostile shape asks for more than a machine has."""

MAX_ITERATIONS = 1_000
MAX_STEPS = 10_000
"""A Loop or Scan is run here for at most so many iterations, and nodes in all of them."""

MAX_LEAVES = 1_000
"""So many nodes are looked at to learn what a large result was computed from."""

PRODUCTS = ("Gemm", "MatMul")
"""Their second operand may be a weight that arithmetic unpacks."""

ROUNDS = 3


@dataclass(frozen=True)
class Settings:
    """What a user can choose.

    Attributes:
        max_growth: The bytes by which a result may exceed the constants that it is computed from; None is 1 MB, or
            what the whole file was allowed to grow by, if that is more.
    """

    max_growth: int | None = None


class ConstantFolding(GraphTransformer):
    """``op(constants…)`` → constant; ``Constant`` → initializer."""

    after = ("common_subexpression_elimination", "shape_folding")
    offers_rewrites = True
    Options = Settings

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Fold a graph's constant nodes, all of them together."""
        move = not context.edit.needs_constant_nodes(graph)
        limit = self.options.max_growth
        if limit is None:
            limit = max(MEGABYTE, context.options.max_growth or 0)
        wave = _Wave(graph, context, limit)
        literals = []
        for node in context.cancellation.checked(tuple(context.cancellation.checked(graph))):
            if node.op_type == "Constant" and not node.domain:
                if move and semantics.constant_tensor(node.outputs[0]) is not None:
                    literals.append(node)
            elif wave.takes(node):
                wave.add(node)
        changed = wave.fold()
        for node in literals:
            changed |= _to_initializer(node, context)
        return changed


def _to_initializer(node: ir.Node, context: Context) -> bool:
    """Make an initializer of a Constant node, if it is still there."""
    (output,) = node.outputs
    if node.graph is None:
        return False
    tensor = semantics.constant_tensor(output)
    assert tensor is not None
    return context.substitute({output: constant(tensor)}, before=node, origin=(node,))


class _Wave:
    """The nodes of one graph that depend on constants alone, in topological order.

    Args:
        graph: The graph.
        context: The way to edit.
        max_growth: The bytes by which a result may exceed what it is computed from.
    """

    def __init__(self, graph: ir.Graph, context: Context, max_growth: int) -> None:
        self._graph = graph
        self._context = context
        self._functions = context.model.functions
        self._max_growth = max_growth
        self._members: dict[ir.Node, None] = {}
        self._values: set[ir.Value] = set()
        self._dequantized: set[ir.Value] = set()
        self._largest = 0

    # -- which nodes --------------------------------------------------------------------------------------------------

    def takes(self, node: ir.Node) -> bool:
        """Whether a node can be computed from constants and the nodes added so far."""
        inputs = node.inputs
        if not inputs:
            return False
        values = self._values
        for value in inputs:
            if value is None or value in values:
                continue
            if value.const_value is None:
                producer = value.producer()
                if producer is None or producer.op_type != "Constant":
                    return False
            if semantics.constant_tensor(value) is None:
                return False
        if not any(value is not None for value in inputs):
            return False
        reason = self._reason_against(node)
        if reason is not None:
            self._context.refuse(node, reason)
            return False
        return self._context.offer((node,))

    def _reason_against(self, node: ir.Node) -> str | Refusal | None:
        if not semantics.is_pure(node, self._functions):
            return "its op is of an unknown domain, it may have effects"
        if semantics.is_random(node, self._functions):
            return "its results are random"
        try:
            plain_attributes(node)
        except Refusal as refusal:
            return refusal
        if not node.attributes or next(semantics.subgraphs(node), None) is None:
            return None
        if node.op_type == "If":
            return "an If with a constant condition is if_inlining's"
        for value in scope.captured(node):
            if value not in self._values and semantics.constant_tensor(value) is None:
                return f"a graph below it uses {value.name}, which is no constant"
        if _steps(node) > MAX_STEPS:
            return "it is not provably short"
        return None

    def add(self, node: ir.Node) -> None:
        """Take a node."""
        self._members[node] = None
        self._values.update(node.outputs)
        tainted = semantics.dequantizes(node)
        for value in node.inputs:
            if value is None:
                continue
            tainted = tainted or value in self._dequantized
            tensor = value.const_value
            if tensor is not None and tensor.nbytes > self._largest:
                self._largest = tensor.nbytes
        if tainted and semantics.key(node) not in semantics.QUANTIZERS:
            self._dequantized.update(node.outputs)

    # -- what is worth storing ----------------------------------------------------------------------------------------

    def fold(self) -> bool:
        """Replace the results that the rest of the graph needs by constants; other nodes of the wave become dead."""
        changed = False
        failed: list[ir.Node] = []
        for number in range(ROUNDS):
            wanted = self._frontier() if not number else self._below(failed)
            if not wanted:
                break
            tensors = self._evaluate(wanted)
            failed = []
            for node in self._cheapest_first(wanted, tensors):
                if not self._replace(node, tensors):
                    failed.append(node)
                else:
                    changed = True
            for siblings in self._siblings(failed, tensors):
                if self._replace_together(siblings, tensors):
                    failed = [node for node in failed if node not in siblings]
                    changed = True
            if not failed:
                break
        return changed

    def _frontier(self) -> list[ir.Node]:
        """The nodes of the wave whose results are needed outside of it and may be stored."""
        frontier = []
        for node in reversed(tuple(self._members)):
            if not self._is_needed_outside(node):
                continue
            reason = self._reason_against_storing(node)
            if reason is None:
                frontier.append(node)
            else:
                del self._members[node]
                if reason:
                    self._context.refuse(node, reason)
        frontier.reverse()
        return frontier

    def _is_needed_outside(self, node: ir.Node) -> bool:
        for value in node.outputs:
            if value.is_graph_output():
                return True
            for use in value.uses():
                if use.node not in self._members and scope.ancestor_in(self._graph, use.node) not in self._members:
                    return True
        return False

    def _reason_against_storing(self, node: ir.Node) -> str | None:
        """Why a node's results are not to be stored; empty where another pass has a better way."""
        for value in node.outputs:
            if any(use.idx == 1 and use.node.op_type in PRODUCTS for use in value.uses()):
                self._dequantized.update(packed_parts(value))
        if any(value in self._dequantized for value in node.outputs):
            return "a dequantized weight would be stored"
        if node.domain == semantics.GROUP_DOMAIN:
            return "what a fusion group holds has been left as it is"
        if node.op_type == "Identity" and not node.domain and not node.outputs[0].is_graph_output():
            return ""
        nbytes = 0
        for value in node.outputs:
            if value.type is not None and not isinstance(value.type, ir.TensorType):
                return "its result is no tensor"
            size = _inferred_bytes(value)
            nbytes += 0 if size is None else size
        return self._reason_against_size(node, nbytes)

    def _reason_against_size(self, node: ir.Node, nbytes: int) -> str | None:
        if nbytes <= self._max_growth or nbytes <= self._bytes_behind(node) + self._max_growth:
            return None
        return f"the result would exceed what it is computed from by more than {self._max_growth} bytes"

    def _bytes_behind(self, node: ir.Node) -> int:
        """The bytes of the constants that a node is computed from, each counted once."""
        return sum(value.const_value.nbytes for value in self._constants_behind(node) if value.const_value is not None)

    def _constants_behind(self, node: ir.Node) -> list[ir.Value]:
        constants: list[ir.Value] = []
        seen: set[ir.Value] = set()
        pending = [node]
        looked_at = 0
        while pending and looked_at < MAX_LEAVES:
            looked_at += 1
            for value in pending.pop().inputs:
                if value is None or value in seen:
                    continue
                seen.add(value)
                if value.const_value is not None:
                    constants.append(value)
                elif (producer := value.producer()) is not None:
                    pending.append(producer)
        return constants

    def _below(self, failed: Iterable[ir.Node]) -> list[ir.Node]:
        """The nodes that failed nodes depend on, to be stored instead: all of them, as any may fail too."""
        for node in failed:
            self._members.pop(node, None)
        producers: set[ir.Node] = set()
        pending = list(failed)
        while pending:
            for value in pending.pop().inputs:
                producer = None if value is None else value.producer()
                if producer in self._members and producer not in producers and producer.graph is self._graph:
                    producers.add(producer)
                    pending.append(producer)
        return [node for node in self._members if node in producers and self._reason_against_storing(node) is None]

    # -- replacing ----------------------------------------------------------------------------------------------------

    def _evaluate(self, wanted: Iterable[ir.Node]) -> dict[ir.Value, ir.TensorProtocol]:
        from ortopt.evaluation.evaluate import DEFAULT_TIMEOUT, evaluate

        return evaluate(
            [node for node in self._members if node.graph is self._graph],
            [value for node in wanted for value in node.outputs if is_used(value)],
            opset_imports=scope.of(self._graph).opset_imports,
            is_random=semantics.is_random,
            functions=self._functions.values(),
            limit_bytes=self._largest + max(min(self._max_growth, MAX_BYTES), WORKING_BYTES),
            timeout=min(DEFAULT_TIMEOUT, self._context.patience),
            spent=self._context.spend,
            token=self._context.cancellation,
        )

    def _cheapest_first(self, nodes: Iterable[ir.Node], tensors: dict[ir.Value, ir.TensorProtocol]) -> list[ir.Node]:
        """Nodes with small results first, because large ones may use up the allowed growth of the file."""

        def nbytes(node: ir.Node) -> int:
            return sum(tensors[value].nbytes for value in node.outputs if value in tensors)

        return sorted(nodes, key=lambda node: nbytes(node) // MEGABYTE)

    def _siblings(
        self, failed: Iterable[ir.Node], tensors: dict[ir.Value, ir.TensorProtocol]
    ) -> list[dict[ir.Node, None]]:
        """Nodes of which none may be stored alone, by the large constant that they are computed from.

        The parts of a weight are as large as the weight, which goes once all of them are stored.
        """
        by_constant: dict[ir.Value, dict[ir.Node, None]] = {}
        for node in failed:
            if node.graph is None or any(is_used(value) and value not in tensors for value in node.outputs):
                continue
            constants = self._constants_behind(node)
            if constants:
                largest = max(constants, key=lambda value: value.const_value.nbytes if value.const_value else 0)
                by_constant.setdefault(largest, {})[node] = None
        return [nodes for nodes in by_constant.values() if len(nodes) > 1]

    def _replace_together(self, nodes: dict[ir.Node, None], tensors: dict[ir.Value, ir.TensorProtocol]) -> bool:
        """Replace the results of several nodes by constants, as one rewrite."""
        used = [value for node in nodes for value in node.outputs if is_used(value)]
        if any(value.dtype is not None and tensors[value].dtype != value.dtype for value in used):
            return False
        first = next(node for node in self._members if node in nodes)
        replacements = {value: constant(tensors[value]) for value in used}
        return self._context.substitute(replacements, before=first, origin=tuple(nodes), nodes=tuple(nodes))

    def _replace(self, node: ir.Node, tensors: dict[ir.Value, ir.TensorProtocol]) -> bool:
        """Replace a node's results by constants; whether that was done, or is not needed any more."""
        context = self._context
        if node.graph is None:
            return True
        used = [value for value in node.outputs if is_used(value)]
        reason: str | None
        if any(value not in tensors for value in used):
            reason = "it could not be evaluated"
        elif any(value.dtype is not None and tensors[value].dtype != value.dtype for value in used):
            reason = "its evaluation gives another type"
        else:
            reason = self._reason_against_size(node, sum(tensors[value].nbytes for value in used))
        if reason is not None:
            context.refuse(node, reason)
            return False
        replacements = {value: constant(tensors[value]) for value in used}
        return context.substitute(replacements, before=node, origin=(node,))


def _inferred_bytes(value: ir.Value) -> int | None:
    """The bytes of a value, where inference knows them."""
    dims = shape_of(value)
    if dims is None or value.dtype is None or value.dtype == ir.DataType.STRING:
        return None
    known = [dim for dim in dims if isinstance(dim, int)]
    return math.ceil(math.prod(known) * value.dtype.itemsize) if len(known) == len(dims) else None


def _steps(node: ir.Node) -> int:
    """An upper bound of the nodes that a Loop, a Scan or another node with graphs runs; infinite if it is not known."""
    nodes = 0
    for graph in semantics.subgraphs(node):
        for inner in scope.below(graph):
            for at in inner:
                nodes += 1
                if at.op_type in semantics.CONTROL_FLOW and at.op_type != "If":
                    return MAX_STEPS + 1
    if node.op_type == "Loop":
        trips = semantics.constant_tensor(node.inputs[0])
        if trips is None or trips.size != 1:
            return MAX_STEPS + 1
        iterations = int(trips.numpy().item())
    else:
        iterations = max(
            (dim for value in node.inputs if value for dim in shape_of(value) or () if isinstance(dim, int)),
            default=MAX_ITERATIONS + 1,
        )
    return nodes * max(iterations, 1) if iterations <= MAX_ITERATIONS else MAX_STEPS + 1
