"""Which floats carry integers to a discrete step: their last digit decides, so their operations must stay as they are.

``Cast<int64>(Cast<float>(i) / 3 * 7)`` is 63 at i = 27, and 62 where both constants are made one. What follows is
another row of a table, or another branch. A path begins

- where an integer becomes a float, and wherever else floats are whole numbers (`WholeNumbers`): what was counted,
  rounded, dequantized by a whole scale, or chosen from constants that are whole;
- at the float inputs of the model, of which nothing is known: they may be whole as well.

It goes through elementwise arithmetic and what only moves elements, into subgraphs and functions and out of them, and
through sums and products of matrices of whole numbers alone, which are whole again. It ends

- in a discrete step: a conversion to integers, strings or booleans, a comparison, a rounding, a choice by size, and
  whatever else takes floats and gives none;
- or in any other product of matrices, convolution, or sum over an axis, in a normalization, or in a transcendental
  function: what comes from there is rounded anyway.

QuantizeLinear is no step: quantized units have bounds of their own.

A value that depends on whole numbers, or on inputs, and on other floats is on a path too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis.crossings import Crossings, holder_of
from ortopt.analysis.whole_numbers import BEGINNINGS, DISCRETE, SUMS, WholeNumbers
from ortopt.cancellation import BETWEEN_CHECKS, NEVER, CancellationToken
from ortopt.graph.index import OpIndex, op_key
from ortopt.graph.match import is_constant
from ortopt.onnx_ir_internals import attributes_of, is_needed
from ortopt.semantics.domains import MICROSOFT, ML, TRAINING
from ortopt.semantics.op_traits import (
    BITWISE,
    BOOLEAN_RESULTS,
    CASTS,
    CHOOSING,
    ELEMENTWISE,
    FROM_FIRST_OPERAND,
    SHAPE_QUERIES,
    TRANSCENDENTAL,
)

CONVERTERS = CASTS | {"BitCast", "OneHot", "TfIdfVectorizer"}
"""Ops of ai.onnx that make floats of integers."""

MOVERS = FROM_FIRST_OPERAND | CASTS | {"Dropout"}
"""Ops of ai.onnx whose results hold elements of their first operand; Resize may hold means of neighbours."""

ARITHMETIC = (
    (ELEMENTWISE - TRANSCENDENTAL - BOOLEAN_RESULTS - BITWISE - MOVERS)
    | CHOOSING
    | {"BatchNormalization", "CumSum", "OneHot", "Range"}
    | {"Celu", "Elu", "Selu"}  # what is positive stays as it is, or is multiplied by one number
)
"""Ops of ai.onnx that compute each element by arithmetic of few, of any operand."""

STEPS = frozenset({"Ceil", "Floor", "Hardmax", "Mod", "Range", "Round", "Shrink", "Sign", "ThresholdedRelu", "Unique"})
"""Ops of ai.onnx with jumps, though they give floats; the size of a Range is one."""

STEPS_BEHIND_FIRST = frozenset({"GridSample", "MaxRoiPool", "Resize", "RoiAlign", "Upsample"})
"""Ops of ai.onnx that make sizes or positions of all operands but the first."""

SMOOTH = SHAPE_QUERIES | {"Dropout", "DynamicQuantizeLinear", "IsInf", "IsNaN", "QuantizeLinear"}
"""Ops that give integers or booleans that no rounding decides, or that have bounds of their own."""

KNOWN_DOMAINS = semantics.PURE_DOMAINS - {ML, "ai.onnx.preview", TRAINING}
"""Domains whose ops are sums, products and transcendental functions where nothing else is said; others may do anything.

Trees and scalers are of ai.onnx.ml.
"""

PLAIN_DOMAINS = KNOWN_DOMAINS - {MICROSOFT}
"""Of these, those in which no op holds a graph but control flow."""


class Exactness:
    """The paths from integers and inputs to discrete steps in one model, kept current while an editor changes it.

    What is once on a path stays so: an edit can only add to them. All edits together cost time proportional to what
    they touch, for each value comes onto a path once.

    Args:
        model: The model.
        index: Its nodes by op, kept current.
        touched: Nodes that edits have changed, oldest first; only grows.
        token: Checked while the paths are drawn for the first time.
    """

    def __init__(
        self, model: ir.Model, index: OpIndex, touched: Sequence[ir.Node], token: CancellationToken = NEVER
    ) -> None:
        self._touched = touched
        self._read = len(touched)
        self._crossings = Crossings(model.functions, index)
        self._whole = WholeNumbers(self._crossings)
        self._on_paths: set[ir.Value] = set()
        self._steps: dict[ir.Value, str] = {}
        self._begin(model, index, token)

    def _begin(self, model: ir.Model, index: OpIndex, token: CancellationToken) -> None:
        """Draw all paths of the model."""
        may_be_whole: list[ir.Node] = []
        others: list[ir.Node] = []
        for graph in index.graphs():
            for op in index.counts(graph):
                domain = op.partition("::")[0] if "::" in op else ""
                foreign = bool(domain) and domain not in PLAIN_DOMAINS
                if foreign or op in BEGINNINGS or op in semantics.CONTROL_FLOW:
                    may_be_whole.extend(index.nodes(graph, op))
                if foreign or op in CONVERTERS or op in CHOOSING:
                    others.extend(index.nodes(graph, op))
        self._spread(self._whole.take_up(may_be_whole), token)
        self._spread((value for value in model.graph.inputs if not value.is_initializer()), token)
        for node in token.checked(others):
            self._draw(node)

    def step_behind(self, nodes: Sequence[ir.Node]) -> tuple[ir.Value, str] | None:
        """A value on a path that some nodes give to others, and the op of the step that it decides about.

        Args:
            nodes: Nodes whose results may be rounded otherwise.

        Returns:
            None if there is none.
        """
        if self._read < len(self._touched):
            self._draw_again(dict.fromkeys(self._touched[self._read :]))
            self._read = len(self._touched)
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

    def _draw_again(self, touched: Iterable[ir.Node]) -> None:
        """Draw the paths through nodes that edits have changed."""
        nodes = [node for node in touched if node.graph is not None]
        for node in nodes:
            self._crossings.take_up(node)
        self._spread(self._whole.take_up(nodes))
        for node in nodes:
            self._draw(node)

    def _draw(self, node: ir.Node) -> None:
        """Draw the paths through a node as it is now."""
        begun = self._begun_at(node)
        if self._crossings.is_crossed(node):
            begun.extend(outer for inner, outer in self._crossings.out_of(node) if inner in self._on_paths)
        known = [value for value in node.inputs if value is not None and value in self._on_paths]
        known.extend(value for value in node.outputs if value in self._on_paths and value.is_graph_output())
        for value in known:
            begun.extend(self._behind(value, (node,)))
        self._spread(begun)
        self._settle((value, self._step_at(value, (node,))) for value in known)

    def _spread(self, values: Iterable[ir.Value], token: CancellationToken = NEVER) -> None:
        """Take up values that are on a path, and all that come from them."""
        taken_up: list[ir.Value] = []
        pending = list(values)
        while pending:
            value = pending.pop()
            if value in self._on_paths or value.dtype in DISCRETE or is_constant(value):
                continue
            self._on_paths.add(value)
            taken_up.append(value)
            pending.extend(self._behind(value, _users(value)))
            if len(taken_up) % BETWEEN_CHECKS == 0:
                token.check()
        self._settle((value, self._step_at(value, _users(value))) for value in token.checked(taken_up))

    def _settle(self, steps: Iterable[tuple[ir.Value, str]]) -> None:
        """Take up values that decide about a step, and all that they come from."""
        for first, step in steps:
            pending = [first] if step else []
            while pending:
                value = pending.pop()
                if value not in self._steps and value in self._on_paths:
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
        if self._whole.is_chosen_from(node):
            begun.extend(node.outputs)
        if self._has_foreign_body(node):
            begun.extend(value for body in semantics.subgraphs(node) for value in body.inputs)
        return begun

    def _step_at(self, value: ir.Value, users: Collection[ir.Node]) -> str:
        """The step that a value decides about through some users, or as a result of its graph; empty if none."""
        for node in users:
            if self._is_step(node, value):
                return node.op_type
        if value.is_graph_output() and (holder := holder_of(value)) is not None and self._has_foreign_body(holder):
            return holder.op_type
        return next((self._steps[behind] for behind in self._behind(value, users) if behind in self._steps), "")

    # -- one step along a path ----------------------------------------------------------------------------------------

    def _behind(self, value: ir.Value, users: Iterable[ir.Node]) -> Iterator[ir.Value]:
        """What some users of a value carry it on to, and what the graph that returns it does."""
        for node in users:
            if self._crossings.is_crossed(node):
                yield from (inner for outer, inner in self._crossings.into(node) if outer is value)
            elif self._carries(node, value):
                yield from node.outputs
        yield from self._crossings.beyond(value)

    def _before(self, value: ir.Value) -> Iterator[ir.Value]:
        """What a value has been carried on from."""
        node = value.producer()
        if node is None:
            for owner in self._crossings.owners(value) if value.is_graph_input() else ():
                yield from (outer for outer, inner in self._crossings.into(owner) if inner is value)
                yield from (result for result, inner in self._crossings.out_of(owner) if inner is value)
        elif self._crossings.is_crossed(node):
            yield from (inner for inner, outer in self._crossings.out_of(node) if outer is value)
        else:
            yield from (operand for operand in node.inputs if operand is not None and self._carries(node, operand))

    # -- what nodes are -----------------------------------------------------------------------------------------------

    def _is_foreign(self, node: ir.Node) -> bool:
        """Whether it is not known what a node does."""
        return node.domain not in KNOWN_DOMAINS and not self._crossings.is_call(node)

    def _has_foreign_body(self, node: ir.Node) -> bool:
        """Whether it is not known what a node does with graphs that it holds."""
        if node.domain in PLAIN_DOMAINS or not attributes_of(node) or self._crossings.is_call(node):
            return False
        return next(semantics.subgraphs(node), None) is not None

    def _carries(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether the floats that a node gives are those of an operand, or arithmetic of them."""
        if op_key(node.domain, node.op_type) in SUMS:
            return node.outputs[0] in self._whole
        if node.domain:
            return self._is_foreign(node) or node.op_type == "Trilu"
        return node.op_type in ARITHMETIC or (node.op_type in MOVERS and node.inputs[0] is value)

    def _is_step(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether a node jumps where a float operand passes some number."""
        if self._crossings.is_crossed(node):
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


def _users(value: ir.Value) -> Collection[ir.Node]:
    return dict.fromkeys(use.node for use in value.uses())


def _may_be_integers(value: ir.Value) -> bool:
    return (value.dtype is None or value.dtype in DISCRETE) and not is_constant(value)  # text may be of integers
