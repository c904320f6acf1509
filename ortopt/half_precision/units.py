"""A model as units that have one precision each, and the values that pass between them.

A unit is a node; a value that a loop carries, or that goes into or comes out of a nested graph or a function (all ends
of it have one type); a constant; or the interface. A Cast is needed where a value's unit and a reader's differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.half_precision.arguments import half_arguments, is_single, reason_against
from ortopt.half_precision.formats import Fit, Format, Magnitudes
from ortopt.half_precision.range_rules import RangeRules
from ortopt.semantics.op_traits import SHAPE_QUERIES

ASSUMED_SIZE: Final = 32
"""What stands for a dimension that is not known."""

_LIGHT: Final = 1 << 19
"""What it costs to compute a node in float32 that could be of 16 bits, beside its elements: half of a Cast."""

_NO_OPSET: Final = 1
_HEAVY: Final = frozenset(
    {
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Attention", "FusedMatMul"),
        *("FusedConv", "FusedGemm", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "MatMulNBits"),
        *("PackedMultiHeadAttention", "DecoderMaskedMultiHeadAttention", "NhwcConv", "MoE", "QMoE", "GemmFastGelu"),
    }
)
"""Ops for whose sake one converts: they are of 16 bits wherever they can."""


class Use(NamedTuple):
    """A place that reads a value: an input of a node, or an output of a graph."""

    holder: ir.Node | ir.Graph
    position: int

    @property
    def value(self) -> ir.Value:
        """What it reads."""
        read = self.holder.inputs if isinstance(self.holder, ir.Node) else self.holder.outputs
        value = read[self.position]
        assert value is not None
        return value


@dataclass(eq=False, slots=True)
class Unit:
    """What has one precision.

    Attributes:
        node: The node, or None.
        uses: What it reads.
        values: What it gives.
        half: Whether its precision is fixed: True is 16 bits, False is float32, None leaves it open.
        why: Why it stays in float32, in words.
        gain: What it costs to leave it in float32.
        is_constant: Whether it can be had in both precisions without a Cast.
    """

    node: ir.Node | None = None
    uses: list[Use] = field(default_factory=list)
    values: list[ir.Value] = field(default_factory=list)
    half: bool | None = None
    why: str = ""
    gain: int = 0
    is_constant: bool = False


def elements(value: ir.Value) -> int:
    """How many elements a value has, with `ASSUMED_SIZE` for sizes that are not known."""
    if value.shape is None:
        return ASSUMED_SIZE
    count = 1
    for dim in value.shape:
        count *= dim if isinstance(dim, int) else ASSUMED_SIZE
    return count


class Units:
    """The units of a model, whose types have been inferred.

    Args:
        model: The model; it is not changed.
        form: The format.
        providers: The providers of the run.
        interface_too: Whether inputs and outputs become of 16 bits.
        token: Cancellation token.

    Attributes:
        all: The units.
        of_node: The units of nodes.
        magnitudes: The magnitudes of constants.
    """

    def __init__(
        self,
        model: ir.Model,
        form: Format,
        providers: Sequence[str],
        *,
        interface_too: bool = False,
        token: CancellationToken = NEVER,
    ) -> None:
        self._model = model
        self._form = form
        self._providers = tuple(providers)
        self.magnitudes = Magnitudes(form)
        self._rules = RangeRules(model, self.magnitudes, form, token)
        self.all: list[Unit] = []
        self.of_node: dict[ir.Node, Unit] = {}
        self._calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {}
        for value in model.graph.inputs:
            if is_single(value):
                self.all.append(Unit(values=[value], half=interface_too, why="it is an input"))
        for graph in scope.below(model.graph, token):
            self._walk(graph, model.opset_imports, token)
        for function in model.functions.values():
            self._walk_function(function, token)
        for at, value in enumerate(model.graph.outputs):
            if is_single(value):
                self.all.append(Unit(uses=[Use(model.graph, at)], half=interface_too, why="it is an output"))

    def _walk_function(self, function: ir.Function, token: CancellationToken) -> None:
        calls = self._calls.get(function.identifier(), [])
        start = len(self.all)
        for graph in scope.below(function.graph, token):
            self._walk(graph, function.opset_imports, token)
        for at, value in enumerate(function.inputs):
            arguments = [Use(call, at) for call in calls if at < len(call.inputs) and call.inputs[at] is not None]
            self._passage(arguments, [value])
        for at, _ in enumerate(function.outputs):
            results = [call.outputs[at] for call in calls if at < len(call.outputs)]
            self._passage([Use(function.graph, at)], results)
        if not calls or not _is_typed(function):
            for unit in self.all[start:]:
                unit.half, unit.why = False, "its function has no types of its own"

    def _walk(self, graph: ir.Graph, opsets: dict[str, int], token: CancellationToken) -> None:
        for value in graph.initializers.values():
            if is_single(value) and not value.is_graph_input():
                self.all.append(Unit(values=[value], is_constant=True))
        for node in token.checked(graph):
            if node.op_identifier() in self._model.functions:
                self._calls.setdefault(node.op_identifier(), []).append(node)
            elif node.domain == "" and node.op_type in _PASSAGES:
                _PASSAGES[node.op_type](self, node)
            elif node.domain == "" and node.op_type == "Constant":
                if is_single(node.outputs[0]):
                    has_content = semantics.constant_content(node) is not None
                    half = None if has_content else False
                    self.all.append(Unit(node, values=[node.outputs[0]], is_constant=has_content, half=half))
            else:
                self._add(node, opsets.get(node.domain, _NO_OPSET))

    def _add(self, node: ir.Node, opset: int) -> None:
        """The unit of a node; arguments of it that stay float32 whatever happens are units of their own."""
        values = [value for value in node.outputs if value.name != "" and is_single(value)]
        uses = [Use(node, at) for at, value in enumerate(node.inputs) if is_single(value)]
        why = self._rules.reason(node)
        if not values and not uses:
            return
        if node.domain == "" and node.op_type in SHAPE_QUERIES:
            unit = Unit(node, uses)
        elif is_source(node):
            self._stay([], uses, "it is cast")
            unit = Unit(node, [], values, half=None if self._fits(node) else False)
        else:
            arguments = (
                None
                if why or any(True for _ in semantics.subgraphs(node))
                else half_arguments(node, opset, self._form, self._providers)
            )
            if arguments is None:
                self._stay(values, uses, why or reason_against(node, opset, self._form, self._providers), node)
                return
            kept = [use for use in uses if use.position not in arguments.inputs]
            stays = [value for at, value in enumerate(node.outputs) if value in values and at not in arguments.outputs]
            self._stay(stays, kept, "its type is that of float32")
            uses = [use for use in uses if use.position in arguments.inputs]
            values = [value for value in values if value not in stays]
            unit = Unit(node, uses, values, gain=_gain(uses, values))
            if node.op_type in _HEAVY:
                unit.half = True
        self.of_node[node] = unit
        self.all.append(unit)

    def _stay(self, values: list[ir.Value], uses: list[Use], why: str, node: ir.Node | None = None) -> None:
        if values or uses:
            unit = Unit(node, uses, values, half=False, why=why)
            self.all.append(unit)
            if node is not None:
                self.of_node[node] = unit

    def _passage(self, uses: list[Use], values: list[ir.Value]) -> None:
        """Values that have one type on the way into a graph, or out of it."""
        ends = [*(use.value for use in uses), *values]
        single = [is_single(value) for value in ends]
        if not any(single):
            return
        uses = [use for use in uses if is_single(use.value)]
        fits = all(self.magnitudes.fit(use.value, None) is not Fit.TOO_LARGE for use in uses)
        half = None if all(single) and fits else False
        self.all.append(Unit(None, uses, [value for value in values if is_single(value)], half=half))

    def _fits(self, node: ir.Node) -> bool:
        """Whether what a ConstantOfShape fills with can be of 16 bits."""
        fill = node.attributes.get("value")
        if node.op_type != "ConstantOfShape" or fill is None:
            return True
        return not fill.is_ref() and self.magnitudes.fit_of(fill.as_tensor()) is not Fit.TOO_LARGE

    def branches(self, node: ir.Node) -> None:
        """The results of an If."""
        graphs = list(semantics.subgraphs(node))
        for at, value in enumerate(node.outputs):
            self._passage([Use(graph, at) for graph in graphs], [value])

    def loop(self, node: ir.Node) -> None:
        """What a Loop carries and collects."""
        (body,) = semantics.subgraphs(node)
        carried = len(node.inputs) - 2
        for at in range(carried):
            initial = [] if node.inputs[2 + at] is None else [Use(node, 2 + at)]
            self._passage([*initial, Use(body, 1 + at)], [body.inputs[2 + at], node.outputs[at]])
        for at in range(carried, len(node.outputs)):
            self._passage([Use(body, 1 + at)], [node.outputs[at]])

    def scan(self, node: ir.Node) -> None:
        """What a Scan carries, goes through and collects."""
        (body,) = semantics.subgraphs(node)
        states = len(node.inputs) - node.attributes["num_scan_inputs"].as_int()
        for at in range(len(node.inputs)):
            if at < states:
                self._passage([Use(node, at), Use(body, at)], [body.inputs[at], node.outputs[at]])
            else:
                self._passage([Use(node, at)], [body.inputs[at]])
        for at in range(states, len(node.outputs)):
            self._passage([Use(body, at)], [node.outputs[at]])

    def without(self, kept: Collection[ir.Node], why: str) -> Units:
        """The same with nodes that stay in float32.

        Args:
            kept: The nodes.
            why: Why they stay.
        """
        chosen = set(kept)
        other = object.__new__(Units)
        other.__dict__.update(self.__dict__)
        other.all = [
            dataclasses.replace(unit, half=False, why=why) if unit.node in chosen and unit.half is not False else unit
            for unit in self.all
        ]
        other.of_node = {unit.node: unit for unit in other.all if unit.node is not None and not unit.is_constant}
        return other


def is_source(node: ir.Node) -> bool:
    """Whether a node's attribute says that it gives float32: it can say 16 bits as well, whatever the inputs are."""
    return node.domain == "" and node.op_type in {"Cast", "ConstantOfShape"} and is_single(node.outputs[0])


def _gain(uses: Sequence[Use], values: Sequence[ir.Value]) -> int:
    return _LIGHT + sum(elements(use.value) for use in uses) + sum(map(elements, values))


def _is_typed(function: ir.Function) -> bool:
    """Whether all values in a function have types: those of all calls agree."""
    return all(value.type is not None for value in _values(function))


def _values(function: ir.Function) -> Iterator[ir.Value]:
    yield from function.inputs
    for graph in scope.below(function.graph):
        for node in graph:
            yield from (value for value in node.outputs if value.name != "")


_PASSAGES: Final[dict[str, Callable[[Units, ir.Node], None]]] = {
    "If": Units.branches,
    "Loop": Units.loop,
    "Scan": Units.scan,
}
