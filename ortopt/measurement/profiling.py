"""Where the time of a model goes under ONNX Runtime's defaults, and what ONNX Runtime itself makes of it at load."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ortopt.errors import InvalidModelError
from ortopt.measurement.asking import MeasurementBudget, ask
from ortopt.serialization.load import SOURCE_KEY, load
from ortopt.system.files import temporary_folder

_MAX_ROUNDS: Final = 3
_MODULE: Final = "ortopt.measurement.profiling_child"


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
    """

    ops: tuple[OpTime, ...]
    file: Mapping[str, int]
    loaded: Mapping[str, int]
    calls: int

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


def in_turns(paths: Sequence[Path], inputs: Path, effort: MeasurementBudget) -> list[Profile]:
    """Profile models in turns, each in a few processes; of each the quickest process counts.

    Args:
        paths: The models' files.
        inputs: An .npz file of plain arrays by input name.
        effort: How much.

    Raises:
        InvalidModelError: One does not run.
    """
    count = min(effort.rounds, _MAX_ROUNDS)
    rounds = [[profile(path, inputs, effort) for path in paths] for _ in range(count)]
    return [min(every, key=lambda one: one.ms) for every in zip(*rounds, strict=True)]


def profile(path: Path, inputs: Path, effort: MeasurementBudget) -> Profile:
    """Profile a model in a process of its own.

    Args:
        path: The model's file.
        inputs: An .npz file of plain arrays by input name.
        effort: How much; ``rounds`` does not matter.

    Raises:
        InvalidModelError: It does not run.
    """
    model = load(path, checked=False)
    with temporary_folder("ortopt-profile-") as name:
        loaded = Path(name) / "loaded.onnx"
        order = {
            "model": str(path),
            "bytes": model.meta[SOURCE_KEY].nbytes,
            "inputs": str(inputs),
            "loaded": str(loaded),
        }
        answer = ask(_MODULE, order, effort)
        if "error" in answer:
            raise InvalidModelError(f"it cannot be profiled: {answer['error']}")
        counts = _ops(loaded) if loaded.is_file() else {}
    return Profile(_times(answer["ops"], counts), _count(model), counts, answer["calls"])


def _ops(path: Path) -> dict[str, int]:
    """Node count by op in what ONNX Runtime has written; empty where it cannot be read."""
    try:
        return _count(load(path, checked=False))
    except InvalidModelError:
        return {}


def _count(model: Any) -> dict[str, int]:
    from ortopt.graph import scope

    counts = Counter(
        f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        for graph in scope.graphs(model)
        for node in graph
    )
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


__all__ = ["OpTime", "Profile", "in_turns", "profile"]
