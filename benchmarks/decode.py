"""Decode loops: `python -m benchmarks.decode [--models A,B] [--steps 128] [--rounds 7] [--out FOLDER]`.

Each way to run a decoder has a process of its own in each round, in an order that turns: ONNX Runtime's `run`, its
IOBinding (presents are bound to the next pasts, nothing is copied outside of the model), the same with what
`ortopt -O3` makes of the model, and `ortopt.InferenceSession` on that, past and present in one buffer. A process makes
a few steps to warm up, and measures the others: wall time, and the CPU time of the calling thread. Ratios are those of
one round, to IOBinding.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.process import ROOT, numbers_of_threads

WAYS = ("run", "IOBinding", "-O3, IOBinding", "-O3, shared buffers")
BASE = "IOBinding"
ZOO = (
    "llama_past__ts17",
    "mistral_past__dyn20raw",
    "gemma_past__ts15",
    "gpt2_past__ts17",
    "opt_past__ts20",
    "t5_decoder_past__ts13",
    "whisper_decoder_past__dyn19raw",
)
WARM_UP = 4
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True, slots=True)
class Task:
    """What a process does.

    Attributes:
        way: How the decoder is run.
        model: The model.
        batch: How many sequences.
        past: How many positions there are before the first step.
        steps: How many steps are measured.
        threads: Within an op.
    """

    way: str
    model: str
    batch: int
    past: int
    steps: int
    threads: int


def feeds(inputs: Sequence[Any], batch: int, length: int) -> dict[str, Any]:
    """The inputs of a step of one token, pasts apart."""
    known: dict[str, Callable[[], Any]] = {
        "input_ids": lambda: np.full((batch, 1), length % 50 + 1),
        "attention_mask": lambda: np.ones((batch, length + 1), np.int64),
        "position_ids": lambda: np.full((batch, 1), length),
    }
    feed = {value.name: known[value.name]() for value in inputs if value.name in known}
    for value in inputs:
        if value.name == "encoder_hidden_states":
            feed[value.name] = np.full((batch, 16, value.shape[-1]), 0.1, np.float32)
    return feed


def pasts(inputs: Sequence[Any], batch: int, length: int) -> dict[str, Any]:
    """Random pasts: the inputs of four axes."""
    rng = np.random.default_rng(0)
    return {
        value.name: rng.standard_normal((batch, value.shape[1], length, value.shape[3])).astype(_TYPES[value.type])
        for value in inputs
        if len(value.shape) == 4
    }


def stepping(task: Task) -> Iterator[Any]:
    """Make one step of a decoder for each value that is asked for: its logits."""
    import onnxruntime

    import ortopt

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = task.threads, 3
    plain = onnxruntime.InferenceSession if "shared" not in task.way else None
    if plain is None:
        session = ortopt.InferenceSession(task.model, options, providers=["cpu"], shared_cache=True)
        yield from _shared(session, task)
        return
    own = plain(task.model, options, providers=["CPUExecutionProvider"])
    yield from (_plain if task.way == "run" else _bound)(own, task)


def _plain(session: Any, task: Task) -> Iterator[Any]:
    inputs, past, length = session.get_inputs(), pasts(session.get_inputs(), task.batch, task.past), task.past
    names = list(past)
    while True:
        logits, *presents = session.run(None, {**feeds(inputs, task.batch, length), **past})
        past, length = dict(zip(names, presents, strict=True)), length + 1
        yield logits


def _bound(session: Any, task: Task) -> Iterator[Any]:
    import onnxruntime

    wrap, inputs, length = onnxruntime.OrtValue.ortvalue_from_numpy, session.get_inputs(), task.past
    past = {name: wrap(array) for name, array in pasts(inputs, task.batch, length).items()}
    names, outputs = list(past), [value.name for value in session.get_outputs()]
    binding = session.io_binding()
    while True:
        for name, array in feeds(inputs, task.batch, length).items():
            binding.bind_ortvalue_input(name, wrap(array))
        for name, value in past.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        logits, *presents = binding.get_outputs()
        past, length = dict(zip(names, presents, strict=True)), length + 1
        yield logits.numpy()


def _shared(session: Any, task: Task) -> Iterator[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    original = onnxruntime.InferenceSession(task.model, options, providers=["CPUExecutionProvider"])
    initial, length = pasts(original.get_inputs(), task.batch, task.past), task.past
    del original
    loop = session.decode_loop()
    loop.load(initial)
    inputs = session.get_inputs()
    while True:
        yield loop.step(feeds(inputs, task.batch, length))[0]
        length += 1


def measured(task: Task) -> dict[str, float]:
    """Seconds of a step, and a number that tells whether the ways compute the same."""
    steps = stepping(task)
    for _ in range(WARM_UP):
        next(steps)
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(task.steps):
        logits = next(steps)
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    check = float(np.abs(np.asarray(logits, np.float64)).mean())
    return {"wall": wall / task.steps, "cpu": cpu / task.steps, "check": check}


def compare(models: Mapping[str, Path], steps: int, past: int, threads: int, rounds: int) -> dict[str, list[Any]]:
    """The rows of each way, one for each round; the models by way."""
    rows: dict[str, list[Any]] = {way: [] for way in models}
    ways = list(models)
    for number in range(rounds):
        for turn in range(len(ways)):
            way = ways[(turn + number) % len(ways)]
            task = Task(way, str(models[way]), 1, past, steps, threads)
            command = [sys.executable, "-m", "benchmarks.decode", "--task", json.dumps(dataclasses.asdict(task))]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:].strip() or "no message")
            rows[way].append(json.loads(done.stdout.splitlines()[-1]))
    checks = [statistics.median(row["check"] for row in each) for each in rows.values()]
    if max(checks) - min(checks) > 1e-3 * max(checks):
        raise RuntimeError(f"the ways do not compute the same: {checks}")
    return rows


def line(name: str, past: int, threads: int, rows: Mapping[str, Sequence[Any]]) -> str:
    """A line of the table: milliseconds of IOBinding, then each way's speed, as median (quartiles)."""
    cells = [name, f"{past}", f"{threads}"]
    clock = "cpu" if threads == 1 else "wall"
    cells.append(f"{statistics.median(row[clock] for row in rows[BASE]) * 1e3:.2f}")
    for way in WAYS:
        if way == BASE:
            continue
        ratios = [base[clock] / own[clock] for base, own in zip(rows[BASE], rows[way], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return f"| {' | '.join(cells)} |"


def table(lines: Sequence[str]) -> str:
    """The lines as Markdown."""
    others = [way for way in WAYS if way != BASE]
    head = f"| model | past | threads | {BASE}, ms | {' | '.join(others)} |"
    return "\n".join([head, f"| --- {'| ---: ' * (3 + len(others))}|", *lines, ""])


def main() -> None:
    """Measure, and write `decode.md` after each model."""
    from benchmarks.decoders import WIDE

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=lambda text: tuple(text.split(",")), default=(*ZOO, *WIDE))
    parser.add_argument("--pasts", type=lambda text: tuple(map(int, text.split(","))), default=(64, 512))
    threads = numbers_of_threads()
    parser.add_argument("--threads", type=lambda text: tuple(map(int, text.split(","))), default=threads)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("bench-out"))
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.task is not None:
        print(json.dumps(measured(Task(**asked.task))))
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for name in asked.models:
        print(name, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            models = _models(name, Path(folder))
            for past in asked.pasts:
                for threads in asked.threads:
                    try:
                        rows = compare(models, asked.steps, past, threads, asked.rounds)
                    except RuntimeError as error:  # a decoder may have fewer positions: it is left out, and said
                        print(f"{name}, past {past}: {str(error).splitlines()[-1]}", file=sys.stderr, flush=True)
                        continue
                    lines.append(line(name, past, threads, rows))
                    (asked.out / "decode.md").write_text(table(lines), encoding="utf-8")
    print(table(lines))


def _models(name: str, folder: Path) -> dict[str, Path]:
    """The model of each way."""
    import ortopt
    from benchmarks.decoders import WIDE, write
    from ortopt import zoo

    original = write(WIDE[name], folder / "original.onnx") if name in WIDE else zoo.cached(name)
    result = folder / "result.onnx"
    ortopt.optimize(original, level=3, verify=False).save(result)
    return {way: result if way.startswith("-O3") else original for way in WAYS}


if __name__ == "__main__":
    main()
