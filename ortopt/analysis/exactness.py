"""Which floats carry integers to a discrete step: their last digit decides, so their operations must stay as they are.

``Cast<int64>(Cast<float>(i) / 3 * 7)`` is 63 at i = 27, and 62 where both constants are made one. What follows is
another row of a table, or another branch. A path begins where an integer becomes a float, goes through elementwise
arithmetic and what only moves elements, into subgraphs and functions and out of them, and ends

- in a discrete step: a conversion to integers, strings or booleans, a comparison, a rounding, a choice by size, and
  whatever else takes floats and gives none;
- or in a product of matrices, a convolution, a sum over an axis, or a transcendental function: what comes from there
  is rounded anyway.

DequantizeLinear begins no path and QuantizeLinear is no step: quantized units have bounds of their own.

A value that depends on integers and on other floats is on a path too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from ortopt import semantics
from ortopt.graph import scope
from ortopt.graph.facts import INTEGERS
from ortopt.graph.index import OpIndex, op_key
from ortopt.graph.match import is_constant
from ortopt.onnx_ir_internals import attributes_of, is_needed
from ortopt.semantics.op_traits import (
    BITWISE,
    BOOLEAN_RESULTS,
    CASTS,
    ELEMENTWISE,
    MOVING,
    SHAPE_QUERIES,
    TRANSCENDENTAL,
)

CONVERTERS = CASTS | {"BitCast", "OneHot", "TfIdfVectorizer"}
"""Ops of ai.onnx that make floats of integers."""

MOVERS = (
    MOVING
    | CASTS
    | {
        *("CenterCropPad", "ConcatFromSequence", "Dropout", "GlobalMaxPool", "MaxPool", "Optional"),
        *("OptionalGetElement", "ReduceMax", "ReduceMin", "Resize", "SequenceAt", "SequenceErase", "SplitToSequence"),
        *("TopK", "Trilu", "Unique", "Upsample"),
    }
)
"""Ops of ai.onnx whose results hold elements of their first operand; Resize may hold means of neighbours."""

ARITHMETIC = (ELEMENTWISE - TRANSCENDENTAL - BOOLEAN_RESULTS - BITWISE - MOVERS) | {
    *("BatchNormalization", "Concat", "CumSum", "OneHot", "Pad", "Range", "Scatter", "ScatterElements", "ScatterND"),
    *("SequenceConstruct", "SequenceInsert", "TensorScatter"),
}
"""Ops of ai.onnx that compute each element by arithmetic of few, of any operand."""

STEPS = frozenset({"Ceil", "Floor", "Hardmax", "Mod", "Range", "Round", "Shrink", "Sign", "ThresholdedRelu", "Unique"})
"""Ops of ai.onnx with jumps, though they give floats; the size of a Range is one."""

STEPS_BEHIND_FIRST = frozenset({"GridSample", "MaxRoiPool", "Resize", "RoiAlign", "Upsample"})
"""Ops of ai.onnx that make sizes or positions of all operands but the first."""

SMOOTH = SHAPE_QUERIES | {"Dropout", "DynamicQuantizeLinear", "IsInf", "IsNaN", "QuantizeLinear"}
"""Ops that give integers or booleans that no rounding decides, or that have bounds of their own."""

KNOWN_DOMAINS = semantics.PURE_DOMAINS - {"ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"}
"""Domains whose ops are sums, products and transcendental functions where nothing else is said; others may do anything.

Trees and scalers are of ai.onnx.ml.
"""

PLAIN_DOMAINS = KNOWN_DOMAINS - {"com.microsoft"}
"""Of these, those in which no op holds a graph but control flow."""

DISCRETE = (
    INTEGERS | {ir.DataType.STRING} | {kind for kind in ir.DataType if kind.name in ("INT2", "INT4", "UINT2", "UINT4")}
)
"""The element types that do not round."""


class Exactness:
    """The paths from integers to discrete steps in one model, kept current while an editor changes it.

    What is once on a path stays so: an edit can only add to them. All edits together cost time proportional to what
    they touch, for each value comes onto a path once.

    Args:
        model: The model.
        index: Its nodes by op, kept current.
        touched: Nodes that edits have changed, oldest first; only grows.
    """

    def __init__(self, model: ir.Model, index: OpIndex, touched: Sequence[ir.Node]) -> None:
        self._functions = model.functions
        self._touched = touched
        self._read = len(touched)
        self._from_integers: set[ir.Value] = set()
        self._steps: dict[ir.Value, str] = {}
        self._calls: dict[ir.OperatorIdentifier, dict[ir.Node, None]] = {}
        names = {op_key(domain, name) for domain, name, _ in model.functions}
        beginnings: list[ir.Node] = []
        for graph in index.graphs():
            for op in index.counts(graph):
                domain = op.partition("::")[0] if "::" in op else ""
                if op in names:
                    for call in index.nodes(graph, op):
                        self._calls.setdefault(call.op_identifier(), {})[call] = None
                elif op in CONVERTERS or (domain and domain not in PLAIN_DOMAINS):
                    beginnings.extend(index.nodes(graph, op))
        for node in beginnings:
            self._draw(node)

    def step_behind(self, nodes: Sequence[ir.Node]) -> tuple[ir.Value, str] | None:
        """A value on a path that some nodes give to others, and the op of the step that it decides about.

        Args:
            nodes: Nodes whose results may be rounded otherwise.

        Returns:
            None if there is none.
        """
        while self._read < len(self._touched):
            node = self._touched[self._read]
            self._read += 1
            if node.graph is not None:
                self._draw(node)
        if not self._steps:
            return None
        members = set(nodes)
        for node in nodes:
            for value in node.outputs:
                if value not in self._steps:
                    continue
                if value.is_graph_output() or any(use.node not in members for use in value.uses()):
                    return value, self._steps[value]
        return None

    # -- whole paths --------------------------------------------------------------------------------------------------

    def _draw(self, node: ir.Node) -> None:
        """Draw the paths through a node as it is now."""
        if node.op_identifier() in self._functions:
            self._calls.setdefault(node.op_identifier(), {})[node] = None
        begun = self._begun_at(node)
        begun.extend(outer for inner, outer in self._results(node) if inner in self._from_integers)
        known = [value for value in node.inputs if value is not None and value in self._from_integers]
        known.extend(value for value in node.outputs if value in self._from_integers and value.is_graph_output())
        for value in known:
            begun.extend(self._behind(value, (node,)))
        self._spread(begun)
        self._settle((value, self._step_at(value, (node,))) for value in known)

    def _spread(self, values: Iterable[ir.Value]) -> None:
        """Take up values that come from integers, and all that come from them."""
        taken_up: list[ir.Value] = []
        pending = list(values)
        while pending:
            value = pending.pop()
            if value in self._from_integers or value.dtype in DISCRETE or is_constant(value):
                continue
            self._from_integers.add(value)
            taken_up.append(value)
            pending.extend(self._behind(value, _users(value)))
        self._settle((value, self._step_at(value, _users(value))) for value in taken_up)

    def _settle(self, steps: Iterable[tuple[ir.Value, str]]) -> None:
        """Take up values that decide about a step, and all that they come from."""
        for first, step in steps:
            pending = [first] if step else []
            while pending:
                value = pending.pop()
                if value not in self._steps and value in self._from_integers:
                    self._steps[value] = step
                    pending.extend(self._before(value))

    def _begun_at(self, node: ir.Node) -> list[ir.Value]:
        """The floats that a node makes of integers."""
        begun: list[ir.Value] = []
        foreign = self._is_foreign(node)
        if foreign or (node.op_type in CONVERTERS and not node.domain):
            operands = node.inputs if foreign else node.inputs[:1]
            if any(value is not None and _may_be_integers(value) for value in operands):
                begun.extend(node.outputs)
        if self._has_foreign_body(node):
            begun.extend(value for body in semantics.subgraphs(node) for value in body.inputs)
        return begun

    def _step_at(self, value: ir.Value, users: Collection[ir.Node]) -> str:
        """The step that a value decides about through some users, or as a result of its graph; empty if none."""
        for node in users:
            if self._is_step(node, value):
                return node.op_type
        if value.is_graph_output() and (holder := _holder(value)) is not None and self._has_foreign_body(holder):
            return holder.op_type
        return next((self._steps[behind] for behind in self._behind(value, users) if behind in self._steps), "")

    # -- one step along a path ----------------------------------------------------------------------------------------

    def _behind(self, value: ir.Value, users: Iterable[ir.Node]) -> Iterator[ir.Value]:
        """What some users of a value carry it on to, and what the graph that returns it does."""
        for node in users:
            if self._is_crossed(node):
                yield from (inner for outer, inner in self._operands(node) if outer is value)
            elif self._carries(node, value):
                yield from node.outputs
        if value.is_graph_output():
            for owner in self._owners(value):
                yield from (outer for inner, outer in self._results(owner) if inner is value)

    def _before(self, value: ir.Value) -> Iterator[ir.Value]:
        """What a value has been carried on from."""
        node = value.producer()
        if node is None:
            for owner in self._owners(value) if value.is_graph_input() else ():
                yield from (outer for outer, inner in self._operands(owner) if inner is value)
                yield from (result for result, inner in self._results(owner) if inner is value)
        elif self._is_crossed(node):
            yield from (inner for inner, outer in self._results(node) if outer is value)
        else:
            yield from (operand for operand in node.inputs if operand is not None and self._carries(node, operand))

    def _owners(self, value: ir.Value) -> Collection[ir.Node]:
        """The nodes that run the graph of a value: the one that holds it, or the calls of the function that it is."""
        holder = _holder(value)
        if holder is not None:
            return (holder,)
        function = scope.of(value.graph).function if isinstance(value.graph, ir.Graph) else None
        return () if function is None else self._calls.get(function.identifier(), ())

    def _operands(self, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
        """What a call or a loop is given, and as what its graph knows it."""
        function = self._functions.get(node.op_identifier())
        if function is not None:
            yield from _pairs(node.inputs, function.inputs)
        elif node.op_type != "If":
            for body in semantics.subgraphs(node):
                lengths = 1 if len(node.inputs) > len(body.inputs) else 0  # of a Scan of opset 8 only
                yield from _pairs(node.inputs[lengths:], body.inputs)

    def _results(self, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
        """What the graphs of a call, loop or branch return, and as what it is known outside or in the next round."""
        function = self._functions.get(node.op_identifier())
        if function is not None:
            yield from _pairs(function.outputs, node.outputs)
        elif attributes_of(node) and self._is_crossed(node):
            for body in semantics.subgraphs(node):
                loops = node.op_type == "Loop"
                returned = body.outputs[1:] if loops else body.outputs  # a Loop's first is whether it goes on
                yield from _pairs(returned, node.outputs)
                if loops or node.op_type == "Scan":
                    scanned = 0 if loops else _number(node, "num_scan_inputs")
                    yield from _pairs(returned, body.inputs[2 if loops else 0 : len(body.inputs) - scanned])

    # -- what nodes are -----------------------------------------------------------------------------------------------

    def _is_crossed(self, node: ir.Node) -> bool:
        """Whether paths go through the graphs of a node, and not through itself."""
        return (node.op_type in semantics.CONTROL_FLOW and not node.domain) or node.op_identifier() in self._functions

    def _is_foreign(self, node: ir.Node) -> bool:
        """Whether it is not known what a node does."""
        return node.domain not in KNOWN_DOMAINS and node.op_identifier() not in self._functions

    def _has_foreign_body(self, node: ir.Node) -> bool:
        """Whether it is not known what a node does with graphs that it holds."""
        if not attributes_of(node) or self._is_crossed(node):
            return False
        return next(semantics.subgraphs(node), None) is not None

    def _carries(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether the floats that a node gives are those of an operand, or arithmetic of them."""
        if node.domain:
            return self._is_foreign(node) or node.op_type == "Trilu"
        return node.op_type in ARITHMETIC or (node.op_type in MOVERS and node.inputs[0] is value)

    def _is_step(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether a node jumps where a float operand passes some number."""
        if self._is_crossed(node):
            return False
        if self._is_foreign(node) or self._has_foreign_body(node):
            return True
        op = node.op_type
        if op in SMOOTH:
            return False
        if not node.domain:
            if op in STEPS or (op == "OneHot" and node.inputs[0] is value):
                return True
            if op in STEPS_BEHIND_FIRST and any(operand is value for operand in node.inputs[1:]):
                return True
        return any(out.dtype in DISCRETE and is_needed(out) for out in node.outputs)


def _pairs(some: Sequence[ir.Value | None], others: Sequence[ir.Value | None]) -> Iterator[tuple[ir.Value, ir.Value]]:
    for one, other in zip(some, others, strict=False):
        if one is not None and other is not None:
            yield one, other


def _users(value: ir.Value) -> Collection[ir.Node]:
    return dict.fromkeys(use.node for use in value.uses())


def _holder(value: ir.Value) -> ir.Node | None:
    """The node that holds the graph of a value."""
    return scope.of(value.graph).parent if isinstance(value.graph, ir.Graph) else None


def _number(node: ir.Node, name: str) -> int:
    attribute = attributes_of(node).get(name)
    return 0 if attribute is None or attribute.is_ref() else attribute.as_int()


def _may_be_integers(value: ir.Value) -> bool:
    return (value.dtype is None or value.dtype in INTEGERS) and not is_constant(value)


__all__ = ["Exactness"]
