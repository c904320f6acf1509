"""The process that times several versions of a model in turns: `python -m benchmarks.speed.turns`.

Reads one JSON object from standard input and writes one: see `Order` and `Answer`. What a version is given stays the
same from call to call, and where its outputs go, too (an I/O binding): nothing but the session's run is timed. Times
are those of the thread that calls, on its CPU clock and on the wall's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from benchmarks.speed.results import WRONG

if TYPE_CHECKING:
    import onnxruntime

_SAMPLE: Final = 2e-3
"""Seconds that a timed sample takes at least: fast models are called several times for it."""

_COLD: Final = 10e-3
"""A call that takes longer warms its own caches: no call before it is needed."""

_MIN_TURNS: Final = 3
_PROBES: Final = 3


class Version(TypedDict):
    """A model to be timed.

    Attributes:
        name: What it is called in the answer.
        model: Its file.
        inputs: The folder with its inputs (`ortopt.verification.input_sets`).
        same: Whether its outputs are to be those of the first version.
    """

    name: str
    model: str
    inputs: str
    same: bool


class Order(TypedDict):
    """What is asked for.

    Attributes:
        versions: The original first.
        threads: Threads within an op.
        seconds: Seconds of timed calls for each version.
        turns: Samples of each version, at most.
    """

    versions: list[Version]
    threads: int
    seconds: float
    turns: int


class Answer(TypedDict):
    """What became of a version.

    Attributes:
        outcome: ``ok``, or why it does not run.
        error: The greatest difference of an output from the original's, relative to that output's largest number; 0
            where the original itself may move as far (`_own_moves`).
        cpu: Seconds of one call on the CPU clock of the calling thread, for each turn.
        wall: The same on the wall's clock.
    """

    outcome: str
    error: float
    cpu: list[float]
    wall: list[float]


class _Times(NamedTuple):
    cpu: float
    wall: float


class Runner:
    """A session with everything bound that it reads and writes.

    Args:
        version: The version.
        threads: Threads within an op.
    """

    def __init__(self, version: Version, threads: int) -> None:
        import onnxruntime

        from ortopt.evaluation.sessions import use_shared_threads
        from ortopt.verification.input_sets import inputs_from

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        if threads > 1:
            use_shared_threads(options, threads)
        self.session = onnxruntime.InferenceSession(version["model"], options, providers=["CPUExecutionProvider"])
        self.binding = self._bound(dict(inputs_from(Path(version["inputs"]))))
        self.outputs_anew = False
        self._run()
        self.outputs = self.binding.copy_outputs_to_cpu() if version["same"] else []
        try:
            self._run()  # into the outputs of the first run
        except RuntimeError:
            self.outputs_anew = True  # the file declares another rank than an output has, which only then is an error
        seconds = min(self.timed(1).cpu for _ in range(_PROBES))  # the least: other processes may be in the way
        self.calls = max(1, round(_SAMPLE / max(seconds, 1e-7)))
        self.warms = seconds < _COLD

    def _bound(self, feeds: dict[str, Any]) -> onnxruntime.IOBinding:
        import onnxruntime

        binding = self.session.io_binding()
        wanted = {value.name for value in self.session.get_inputs()}
        for name, array in feeds.items():
            if name in wanted:
                binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for value in self.session.get_outputs():
            binding.bind_output(value.name)
        return binding

    def _run(self) -> None:
        if self.outputs_anew:
            self.binding.clear_binding_outputs()
            for value in self.session.get_outputs():
                self.binding.bind_output(value.name)
        self.session.run_with_iobinding(self.binding)

    def sample(self) -> _Times:
        """Seconds of one call, as the mean of a sample."""
        if self.warms:
            self._run()
        return self.timed(self.calls)

    def timed(self, calls: int) -> _Times:
        """Seconds of one call, as the mean of so many."""
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(calls):
            self._run()
        return _Times((time.thread_time() - cpu) / calls, (time.perf_counter() - wall) / calls)


def times(order: Order) -> dict[str, Answer]:
    """Time the versions in turns: each turn starts with another one."""
    runners: dict[str, Runner] = {}
    answers: dict[str, Answer] = {}
    for version in order["versions"]:
        name = version["name"]
        answers[name] = {"outcome": "ok", "error": 0.0, "cpu": [], "wall": []}
        try:
            runners[name] = Runner(version, order["threads"])
        except Exception as error:  # a peer's broken result is a line in the table
            told = str(error).replace(version["model"], Path(version["model"]).name)  # not where it happened to lie
            answers[name]["outcome"] = f"does not run: {(told.splitlines() or [''])[0][:200]}"
    first = runners.get(order["versions"][0]["name"])
    for version in order["versions"]:
        if first is not None and version["same"] and version["name"] in runners:
            answers[version["name"]]["error"] = difference(first.outputs, runners[version["name"]].outputs)
    if first is not None and any(answer["error"] > WRONG for answer in answers.values()):
        own = _own_moves(order, first.outputs)
        for answer in answers.values():
            answer["error"] = answer["error"] if answer["error"] > own else 0.0
    _take_turns(runners, answers, order)
    return answers


def _take_turns(runners: dict[str, Runner], answers: dict[str, Answer], order: Order) -> None:
    names = list(runners)
    end = time.monotonic() + order["seconds"] * len(names)
    for turn in range(order["turns"]):
        if turn >= _MIN_TURNS and time.monotonic() > end:
            break
        shift = turn % max(len(names), 1)
        for name in (*names[shift:], *names[:shift]):
            taken = runners[name].sample()
            answers[name]["cpu"].append(taken.cpu)
            answers[name]["wall"].append(taken.wall)


def _own_moves(order: Order, outputs: Sequence[Any]) -> float:
    """Twice the difference that the original makes where its weights and inputs are moved by units in the last place.

    Steps of a quantization, and a TopK among nearly equal numbers, move outputs by far more than rounding, whoever
    has made the result.
    """
    import onnx_ir as ir

    from ortopt.verification.input_sets import inputs_from, store_inputs
    from ortopt.verification.noise import PERTURBED_BY, jittered, jittered_inputs

    version = order["versions"][0]
    with TemporaryDirectory() as folder:
        inputs = Path(folder, "inputs")
        store_inputs(jittered_inputs(inputs_from(Path(version["inputs"])), 0, PERTURBED_BY, small=True), inputs)
        ir.save(jittered(ir.load(version["model"]), 0, PERTURBED_BY), model := str(Path(folder, "model.onnx")))
        moved = Runner(Version(name="", model=model, inputs=str(inputs), same=True), order["threads"])
    return 2 * difference(outputs, moved.outputs)


def difference(expected: Sequence[Any], got: Sequence[Any]) -> float:
    """The greatest difference of floating-point outputs, relative to the largest number of each; NaN equals NaN.

    A difference of one rounding of a number near 1 is none: what is that small out of a Sigmoid is rounding itself.
    """
    import numpy as np

    worst = 0.0
    for right, other in zip(expected, got, strict=True):
        if not isinstance(right, np.ndarray) or right.dtype.kind != "f" or not right.size:
            continue
        if right.shape != other.shape:
            return float("inf")
        one, two = right.astype(np.float64), np.asarray(other).astype(np.float64)
        with np.errstate(invalid="ignore"):
            gaps = np.where((one == two) | (np.isnan(one) & np.isnan(two)), 0.0, np.abs(one - two))
        largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
        gap = float(np.nan_to_num(gaps, nan=np.inf).max())
        if gap <= np.finfo(right.dtype).eps:
            continue
        worst = max(worst, gap / largest if largest else gap)
    return worst


if __name__ == "__main__":
    print(json.dumps(times(json.load(sys.stdin))))
