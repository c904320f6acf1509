"""Where the time of a model goes under ONNX Runtime's defaults, and what ONNX Runtime itself makes of it at load."""

from __future__ import annotations

import bisect
import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir

from ortopt.errors import InvalidModelError
from ortopt.graph import scope
from ortopt.graph.index import op_key
from ortopt.graph.provenance import record_of
from ortopt.instrumentation.module_paths import paths_of_nodes
from ortopt.measurement.asking import MeasurementBudget, ask
from ortopt.semantics.op_traits import CONTROL_FLOW
from ortopt.serialization.load import SOURCE_KEY, load
from ortopt.system.files import temporary_folder
from ortopt.verification.layer_rows import layer_of


def layers_by_node(model: ir.Model, loaded: ir.Model | None) -> dict[str, str]:
    """The layers of nodes by their names; empty texts for those that stand in none.

    A node that ONNX Runtime has made when it loaded the file stands where that node stood whose result it computes.

    Args:
        model: The model in the file.
        loaded: What ONNX Runtime has made of it; None where that is not known.
    """
    found: dict[str, str] = {}
    by_value: dict[str, str] = {}
    for node, layer in _layers(model):
        if node.name:
            found.setdefault(node.name, layer)
        by_value.update((value.name, layer) for value in node.outputs if value.name)
    for node, layer in () if loaded is None else _layers(loaded):
        if node.name and node.name not in found:
            told = (by_value[value.name] for value in node.outputs if value.name in by_value)
            found[node.name] = next(told, layer)
    return found


def _layers(model: ir.Model) -> list[tuple[ir.Node, str]]:
    """All nodes with their layers."""
    return [(node, _layer_of_origins(node) or layer_of(path)) for node, path in paths_of_nodes(model).items()]


def _layer_of_origins(node: ir.Node) -> str:
    """The layer of the nodes that a node was made from, where that is recorded and it is one; else empty."""
    record = record_of(node)
    origins = () if record is None else record.origins
    layers = {layer_of([part for part in name.split("/")[:-1] if part]) for name in origins}
    return layers.pop() if len(layers) == 1 else ""


_MAX_ROUNDS: Final = 3
_KERNEL: Final = "_kernel_time"


@dataclasses.dataclass(frozen=True, slots=True)
class OpTime:
    """What the kernels of one op take in a call.

    Attributes:
        op: The op, as ``Add`` or ``com.microsoft::Gelu``.
        count: How many of its kernels run in a call.
        ms: Milliseconds in a call, without those of a body that the op runs.
        share: Its part of the milliseconds of all kernels.
    """

    op: str
    count: float
    ms: float
    share: float


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """The profile of one model.

    Attributes:
        ops: The ops, what takes most time first.
        file: Node count by op in the file.
        loaded: Node count by op after ONNX Runtime has loaded and optimized it; empty where it does not tell.
        calls: How many calls were recorded.
        layers: Milliseconds in a call by layer, in the order of the file; the empty text is what stands in none.
    """

    ops: tuple[OpTime, ...]
    file: Mapping[str, int]
    loaded: Mapping[str, int]
    calls: int
    layers: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def ms(self) -> float:
        """Milliseconds of all kernels in a call."""
        return sum(row.ms for row in self.ops)

    @property
    def changed_at_load(self) -> dict[str, tuple[int, int]]:
        """The ops of which there are more or fewer after loading: how many in the file, how many then."""
        if not self.loaded:
            return {}
        every = sorted({*self.file, *self.loaded})
        counts = {op: (self.file.get(op, 0), self.loaded.get(op, 0)) for op in every if op != "Constant"}
        return {op: pair for op, pair in counts.items() if pair[0] != pair[1]}


def in_turns(paths: Sequence[Path], inputs: Path, budget: MeasurementBudget) -> list[Profile]:
    """Profile models in turns, each in a few processes; of each the quickest process counts.

    Args:
        paths: The models' files.
        inputs: A folder of stored inputs (`ortopt.verification.input_sets`).
        budget: How much.

    Raises:
        InvalidModelError: One does not run.
    """
    count = min(budget.rounds, _MAX_ROUNDS)
    rounds = [[profile(path, inputs, budget) for path in paths] for _ in range(count)]
    return [min(every, key=lambda one: one.ms) for every in zip(*rounds, strict=True)]


def profile(path: Path, inputs: Path, budget: MeasurementBudget) -> Profile:
    """Profile a model in a process of its own.

    Args:
        path: The model's file.
        inputs: A folder of stored inputs (`ortopt.verification.input_sets`).
        budget: How much; ``rounds`` does not matter.

    Raises:
        InvalidModelError: It does not run.
    """
    model = load(path, checked=False)
    with temporary_folder("ortopt-profile-") as name:
        loaded = Path(name) / "loaded.onnx"
        order = {
            "models": [str(path)],
            "bytes": model.meta[SOURCE_KEY].nbytes,
            "inputs": [str(inputs)],
            "loaded": str(loaded),
        }
        (answer,) = ask("profile", [order], budget)
        if "error" in answer:
            raise InvalidModelError(f"it cannot be profiled: {answer['error']}")
        made = _readable(loaded) if loaded.is_file() else None
        counts = {} if made is None else _count(made)
        events = json.loads(Path(answer["profile"]).read_text(encoding="utf-8"))
        layers = layers_by_node(model, made)
    calls = by_call(events)[answer["warm_up"] :]
    nodes = typical([by_node(rows) for rows in calls])
    times = _times(typical([by_op(rows) for rows in calls]), counts)
    return Profile(times, _count(model), counts, len(calls), _by_layer(nodes, layers))


def by_call(events: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The events of each call of a session, in order.

    Args:
        events: Of a profile, in ONNX Runtime's format.
    """
    rows = list(events)
    spans = sorted((row["ts"], row["ts"] + row["dur"]) for row in rows if row.get("name") == "model_run")
    starts = [start for start, _ in spans]
    calls: list[list[dict[str, Any]]] = [[] for _ in spans]
    for row in rows:
        number = bisect.bisect_right(starts, row.get("ts", -1)) - 1
        if number >= 0 and row["ts"] <= spans[number][1]:
            calls[number].append(row)
    return calls


def typical(calls: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """For each op the medians over the calls, of its kernels' runs and of their microseconds.

    Args:
        calls: From `by_op`.
    """
    ops = dict.fromkeys(op for call in calls for op in call)
    return {op: [statistics.median(call.get(op, (0, 0.0))[i] for call in calls) for i in (0, 1)] for op in ops}


def by_op(events: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """For each op the number of its kernels' runs, and their own microseconds: those of a loop's body are not its own.

    Args:
        events: Of a profile, in ONNX Runtime's format.
    """
    return _own_times(events, lambda row: str(row["args"]["op_name"]))


def by_node(events: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """The same for each node, by its name.

    Args:
        events: Of a profile, in ONNX Runtime's format.
    """
    return _own_times(events, lambda row: str(row["name"]).removesuffix(_KERNEL))


def _own_times(events: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], str]) -> dict[str, list[float]]:
    kernels = [row for row in events if row.get("cat") == "Node" and row["name"].endswith(_KERNEL)]
    kernels.sort(key=lambda row: (row["tid"], row["ts"], -row["dur"]))
    found: dict[str, list[float]] = {}
    around: list[dict[str, Any]] = []
    for row in kernels:
        while around and (around[-1]["tid"] != row["tid"] or around[-1]["ts"] + around[-1]["dur"] < row["ts"]):
            around.pop()
        if around and around[-1]["ts"] + around[-1]["dur"] >= row["ts"] + row["dur"] and _has_body(around[-1]):
            found[key(around[-1])][1] -= row["dur"]
        count = found.setdefault(key(row), [0, 0.0])
        count[0] += 1
        count[1] += row["dur"]
        around.append(row)
    return found


def _has_body(row: dict[str, Any]) -> bool:
    return row["args"]["op_name"] in CONTROL_FLOW


def _by_layer(nodes: Mapping[str, Sequence[float]], layers: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds by layer, in the order of the file."""
    found = dict.fromkeys(layers.values(), 0.0)
    for name, (_, microseconds) in nodes.items():
        layer = layers.get(name, "")
        found[layer] = found.get(layer, 0.0) + microseconds / 1e3
    return found


def _readable(path: Path) -> ir.Model | None:
    """What ONNX Runtime has written; None where it cannot be read."""
    try:
        return load(path, checked=False)
    except InvalidModelError:
        return None


def _count(model: ir.Model) -> dict[str, int]:
    counts = Counter(op_key(node.domain, node.op_type) for graph in scope.graphs(model) for node in graph)
    return dict(sorted(counts.items()))


def _times(ops: Mapping[str, list[float]], loaded: Mapping[str, int]) -> tuple[OpTime, ...]:
    """The times of a call; ONNX Runtime tells no domain, so what it has loaded does."""
    full: dict[str, set[str]] = {}
    for op in loaded:
        full.setdefault(op.rpartition("::")[2], set()).add(op)
    whole = sum(microseconds for _, microseconds in ops.values()) or 1.0
    rows = [
        OpTime(
            next(iter(full[op])) if len(full.get(op, ())) == 1 else op,
            count,
            microseconds / 1e3,
            microseconds / whole,
        )
        for op, (count, microseconds) in ops.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.ms, row.op)))
