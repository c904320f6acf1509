"""A float32 model in 16 bits: divided by rule, measured against itself, and divided again where that costs too much.

The layers that must stay in float32: found by bisection over the nodes, in the graph's order, fewest first.

What 16 bits cost is measured with the nodes up to some place in float32: the first place with which it is within the
tolerance stands behind a node that costs too much. That node stays in float32, and the search goes on with it until
the rest is within the tolerance. Where one node after the other makes little difference (an error that adds up), more
at a time stay; in the end those go that are not needed after all.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.graph.provenance import origins_of
from ortopt.half_precision.conversion import casts, convert
from ortopt.half_precision.division import Division, masked_values
from ortopt.half_precision.formats import BFLOAT16, FLOAT16, Format
from ortopt.half_precision.rounded_copy import rounded_copy
from ortopt.half_precision.units import Units
from ortopt.optimization.half_precision_measurement import Measurement
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.terminal_text import quoted
from ortopt.verification.runner import nbytes

MAX_PROBES: Final = 96
"""How many models are measured at most; then all nodes up to the place that was found stay."""

_PROGRESS: Final = 0.5
"""What is left of an error where a node was worth keeping by itself."""

_SINGLE_OVERFLOWS: Final = 4
"""How many nodes that overflow are searched one by one."""

Node = TypeVar("Node")


@dataclass(frozen=True, slots=True)
class Kept(Generic[Node]):
    """What a search has found.

    Attributes:
        nodes: What stays in float32, in the graph's order.
        before: The error without.
        after: The error with it.
        probes: How many models were measured.
    """

    nodes: tuple[Node, ...]
    before: float
    after: float
    probes: int


@dataclass(eq=False)
class KeepListSearch(Generic[Node]):
    """One search.

    Attributes:
        error: The error where some nodes stay in float32.
        nodes: The nodes that could be of 16 bits, in the graph's order.
        tolerance: What the error may be.
        max_probes: How many models are measured at most.
    """

    error: Callable[[Collection[Node]], float]
    nodes: Sequence[Node]
    tolerance: float
    max_probes: int = MAX_PROBES

    def __post_init__(self) -> None:
        self._nodes = list(self.nodes)
        self._probes = 0
        self._blocks: list[range] = []

    def run(self) -> Kept[Node]:
        """Search; where not even float32 is within the tolerance, nothing is kept."""
        before = error = self._error(())
        if before <= self.tolerance:
            return self._kept(before, before)
        if self._error(range(len(self._nodes))) > self.tolerance:
            return self._kept(before, before)
        width = 1
        while error > self.tolerance:
            end = self._boundary()
            if self._probes >= self.max_probes:
                self._blocks.append(range(end))
                error = self._error(self._places())
                break
            self._blocks.append(range(max(0, end - width), end))
            now = self._error(self._places())
            is_progress = now <= error * _PROGRESS or (math.isinf(now) and len(self._blocks) < _SINGLE_OVERFLOWS)
            width, error = (1 if is_progress else 2 * width), now
        return self._kept(before, self._without_needless(error))

    def _kept(self, before: float, after: float) -> Kept[Node]:
        nodes = tuple(self._nodes[place] for place in sorted(self._places()))
        return Kept(nodes, before, after, self._probes)

    def _places(self) -> set[int]:
        return {place for block in self._blocks for place in block}

    def _error(self, places: Collection[int]) -> float:
        self._probes += 1
        return self.error([self._nodes[place] for place in places])

    def _boundary(self) -> int:
        """How many nodes from the start, beside what is kept, make the rest good."""
        kept = self._places()
        bad, good = 0, len(self._nodes)
        while good - bad > 1:
            middle = (bad + good) // 2
            if self._error(kept.union(range(middle))) > self.tolerance:
                bad = middle
            else:
                good = middle
        return good

    def _without_needless(self, error: float) -> float:
        """Let go of what is not needed after all; the error then."""
        for block in [*self._blocks[:-1]]:
            if self._probes >= self.max_probes:
                break
            others = [other for other in self._blocks if other is not block]
            now = self._error({place for other in others for place in other})
            if now <= self.tolerance:
                self._blocks, error = others, now
        return error


ASKED: Final = "it was asked to"
BEYOND: Final = "its numbers are beyond the range on the inputs"
MEASURED: Final = "it costs more than the tolerance"
DEPLOYED: Final = "ONNX Runtime's default optimizations break it in 16 bits"
_LARGE: Final = 1 << 28
"""Bytes of weights for which a model is measured half as often, and so on."""

_MIN_PROBES: Final = 24
_LARGEST_RUN: Final = 1 << 31
"""Bytes of weights in float32 from which a model of 16 bits does not run as it is: all would be cast at once."""


@dataclass(frozen=True, slots=True)
class HalfPrecision:
    """What became of a model that was to compute in 16 bits.

    Attributes:
        dtype: ``float16`` or ``bfloat16``.
        nodes: How many nodes compute in 16 bits.
        single: What stays in float32, as (op, why, how many nodes).
        casts: How many Casts between floats the conversion left.
        kept: The nodes that stay because they cost too much, as (name, op).
        tolerance: What an output may change, relative to its slices.
        error_before: The worst error of an output with all nodes in 16 bits that can be; None if not measured.
        error: The same with what is kept in float32.
        probes: How many models were measured.
        not_measured: Why nothing was measured, or empty.
    """

    dtype: str
    nodes: int
    single: tuple[tuple[str, str, int], ...]
    casts: int
    kept: tuple[tuple[str, str], ...]
    tolerance: float
    error_before: float | None
    error: float | None
    probes: int
    not_measured: str


def format_of(options: Options) -> Format:
    """The format that was asked for."""
    return FLOAT16 if options.float16 else BFLOAT16


class HalfPrecisionConversion:
    """Converts one model.

    Args:
        model: A float32 model; only what is inferred of it changes.
        options: Options of the run.
        named: What the caller has named to stay in float32.
        token: Cancellation token.
    """

    def __init__(self, model: ir.Model, options: Options, named: NamedNodes, token: CancellationToken = NEVER) -> None:
        self._form = format_of(options)
        self._options = options
        self._token = token
        self.model = load(model, token, checked=False)
        scope.attach(self.model, options, token)
        shapes.infer_model(self.model, token)
        self._asked = named.among(self.model)
        self._units = self._units_with(interface_too=False)
        self._kept: Kept[ir.Node] = Kept((), math.nan, math.nan, 0)
        self._broken: frozenset[ir.Node] = frozenset()
        self._not_measured = "no inputs were run"
        self.tolerance = options.float16_tolerance or self._form.tolerance

    def _units_with(self, *, interface_too: bool) -> Units:
        units = Units(self.model, self._form, self._options.providers, interface_too=interface_too, token=self._token)
        return units.without(self._asked, ASKED)

    def measure(self, inputs: Mapping[str, Any] | None = None) -> None:
        """Find what must stay in float32 for the outputs to be within the tolerance.

        Args:
            inputs: Inputs by name; None draws them.
        """
        with Measurement(self.model, inputs, self._options, self._token) as measurement:
            self._not_measured = measurement.reason
            if self._not_measured:
                return
            before = measurement.error(self._probe(()))
            self._kept = Kept((), before, before, 1)
            if before > self.tolerance:
                self._kept = self._searched(measurement, before)
            self._keep_broken(measurement)

    def _keep_broken(self, measurement: Measurement) -> None:
        """Keep what runs in 16 bits, but not as it is deployed: with ONNX Runtime's default optimizations.

        That can be seen where the CPU runs it, and is the conversion's fault where float32 is right in both ways.
        """

        def error(kept: Collection[ir.Node]) -> float:
            return measurement.error(self._converted({*self._kept.nodes, *kept}), optimize=True)

        if self._form is BFLOAT16 or nbytes(self.model) > _LARGEST_RUN or error(()) <= self.tolerance:
            return
        plain = measurement.error(self._converted(self._kept.nodes))
        if plain > self.tolerance or measurement.error(self.model, optimize=True) > self.tolerance:
            return
        kept = set(self._kept.nodes)
        nodes = [node for node in self._nodes_of_16_bits() if node not in kept]
        found = KeepListSearch(error, nodes, self.tolerance, _MIN_PROBES).run()
        self._broken = frozenset(found.nodes)

    def _searched(self, measurement: Measurement, before: float) -> Kept[ir.Node]:
        """What must stay: what is beyond the range in float32 already, and what a search finds beside."""
        nodes = self._nodes_of_16_bits()
        masked = masked_values(self.model, self._units.magnitudes)
        beyond = measurement.beyond(nodes, self._form.largest, masked) if math.isinf(before) else []
        self._units = self._units.without(beyond, BEYOND)
        others = [node for node in nodes if node not in set(beyond)]
        probes = max(_MIN_PROBES, MAX_PROBES // max(1, nbytes(self.model) // _LARGE))
        search = KeepListSearch(lambda kept: measurement.error(self._probe(kept)), others, self.tolerance, probes)
        found = search.run()
        kept = set(beyond).union(found.nodes)
        return Kept(tuple(node for node in nodes if node in kept), before, found.after, found.probes + 2)

    def _nodes_of_16_bits(self) -> list[ir.Node]:
        """The nodes that can be of 16 bits, in the graph's order."""
        half = Division(self._units).half
        return [
            node
            for graph in scope.graphs(self.model)
            for node in graph
            if (unit := self._units.of_node.get(node)) is not None and unit in half
        ]

    def _probe(self, kept: Collection[ir.Node]) -> ir.Model:
        return rounded_copy(self._converted(kept), self._form.dtype, self._token)

    def _converted(self, kept: Collection[ir.Node]) -> ir.Model:
        division = Division(self._units.without(kept, MEASURED))
        return convert(self.model, division, self._form, self._token)

    def result(self) -> tuple[ir.Model, HalfPrecision]:
        """The converted model, and what became of it."""
        units = self._units_with(interface_too=self._options.float16_io)
        beyond = [node for node in self._kept.nodes if self._units.of_node[node].why == BEYOND]
        units = units.without(beyond, BEYOND).without(self._kept.nodes, MEASURED)
        units = units.without(self._broken, DEPLOYED)
        division = Division(units)
        model = convert(self.model, division, self._form, self._token)
        single = Counter(
            (unit.node.op_type, unit.why or "it is among nodes of float32")
            for unit in units.all
            if unit.node is not None and not unit.is_constant and unit not in division.half and unit.values
        )
        half = sum(1 for unit in division.half if unit.node is not None and not unit.is_constant)
        measured = not self._not_measured
        return model, HalfPrecision(
            self._form.dtype.name.lower(),
            half,
            tuple((*row, count) for row, count in sorted(single.items())),
            sum(1 for _ in casts(model)),
            tuple((node.name or "", node.op_type) for node in self._kept.nodes),
            self.tolerance,
            self._kept.before if measured else None,
            self._kept.after if measured else None,
            self._kept.probes,
            self._not_measured,
        )


class NamedNodes:
    """The nodes that ``keep_float32`` names, and those that optimization has made from them.

    Args:
        original: The original.
        patterns: As `matches` takes them.
    """

    def __init__(self, original: ir.Model, patterns: Sequence[str]) -> None:
        nodes = [node for graph in scope.graphs(original) for node in graph] if patterns else []
        self._origins = {
            pattern: {name for node in nodes if matches(node, [pattern]) for name in origins_of(node)}
            for pattern in patterns
        }

    def among(self, model: ir.Model) -> list[ir.Node]:
        """Those of an optimized model, in order.

        Args:
            model: What has been made of the original.

        Raises:
            UsageError: If a pattern names no node of the model, and no node from which one of the model was made.
        """
        nodes = [node for graph in scope.graphs(model) for node in graph] if self._origins else []
        found: set[ir.Node] = set()
        for pattern, origins in self._origins.items():
            own = {node for node in nodes if matches(node, [pattern]) or not origins.isdisjoint(origins_of(node))}
            if not own:
                gone = "optimization leaves nothing of what it names" if origins else "no op, no name of a node is so"
                raise UsageError(f"keep_float32 has {quoted(pattern)}, which matches nothing: {gone}")
            found |= own
        return [node for node in nodes if node in found]


def matches(node: ir.Node, patterns: Sequence[str]) -> bool:
    """Whether a node is among ops and names, as ``Softmax``, ``com.microsoft::Gelu`` or ``/layers.3/*``."""
    texts = (node.op_type, f"{node.domain}::{node.op_type}", node.name or "")
    return any(text and fnmatch.fnmatchcase(text, pattern) for pattern in patterns for text in texts)
