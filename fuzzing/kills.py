"""Runs that replace a model with external data and are killed, at random instants."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ortopt.api import optimize
from ortopt.serialization.load import load
from ortopt.serialization.save import save, to_bytes

_OUTPUT: Final = "model.onnx"
_WIDTH: Final = 256


@dataclasses.dataclass
class Kills:
    """What became of runs that were killed.

    Attributes:
        killed: Runs that were killed while they ran; in `saving`, those while they wrote.
        finished: Runs that were over before.
        old: Outputs that were wholly the old model afterwards.
        new: Outputs that were wholly the new one.
        littered: Kills that left files behind, which the next run removed.
        wrong: What must not be, in words.
    """

    killed: int = 0
    saving: int = 0
    finished: int = 0
    old: int = 0
    new: int = 0
    littered: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)


def weighty(seed: int, layers: int = 12) -> onnx.ModelProto:
    """A model with some megabytes of weights and something to do: to fold, to fuse, to remove."""
    draw = np.random.default_rng(seed)
    nodes, weights, value = [], [], "x"
    for layer in range(layers):
        weights.append(numpy_helper.from_array(draw.standard_normal((_WIDTH, _WIDTH), np.float32), f"w{layer}"))
        weights.append(numpy_helper.from_array(draw.standard_normal(_WIDTH, np.float32), f"b{layer}"))
        nodes += [
            helper.make_node("Transpose", [f"w{layer}"], [f"t{layer}"], perm=[1, 0]),
            helper.make_node("MatMul", [value, f"t{layer}"], [f"m{layer}"]),
            helper.make_node("Add", [f"m{layer}", f"b{layer}"], [f"a{layer}"]),
            helper.make_node("Identity", [f"a{layer}"], [f"i{layer}"]),
            helper.make_node("Relu", [f"i{layer}"], [f"r{layer}"]),
        ]
        value = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [4, _WIDTH])],
        [helper.make_tensor_value_info(value, 1, [4, _WIDTH])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _digest(path: Path) -> str:
    """What a model on disk is, to the last weight."""
    return hashlib.sha256(to_bytes(load(path))).hexdigest()


def _replace(source: Path, output: Path) -> None:
    optimize(source, verify=False).save(output, external_data="copy")


@dataclasses.dataclass(frozen=True, slots=True)
class _Models:
    """The models of the experiment, and the digests of what may lie at the output.

    Attributes:
        source: The model that each run optimizes.
        other: The model that the runs after it optimize.
        replaced: A folder with an older result at the output.
        in_place: A folder with the model itself at the output.
        old: The older result.
        original: The model itself.
        new: The result of the run.
        last: The result of the runs after it.
        data_bytes: The size of the data that a run writes.
    """

    source: Path
    other: Path
    replaced: Path
    in_place: Path
    old: str
    original: str
    new: str
    last: str
    data_bytes: int


def _prepared(folder: Path, layers: int) -> _Models:
    """Write the models into an empty folder."""
    sources = [folder / f"source{number}.onnx" for number in range(3)]
    for number, path in enumerate(sources):
        save(load(weighty(number, layers)), path, external_data="copy")
    before, source, other = sources
    replaced, reference, in_place = (folder / name for name in ("template", "reference", "in_place"))
    for path in (replaced, reference, in_place):
        path.mkdir()
    _replace(before, replaced / _OUTPUT)
    _replace(source, reference / _OUTPUT)
    (data,) = reference.glob("*.data")
    _replace(other, folder / "other.onnx")
    save(load(weighty(1, layers)), in_place / _OUTPUT, external_data="copy")
    return _Models(
        source,
        other,
        replaced,
        in_place,
        old=_digest(replaced / _OUTPUT),
        original=_digest(in_place / _OUTPUT),
        new=_digest(reference / _OUTPUT),
        last=_digest(folder / "other.onnx"),
        data_bytes=data.stat().st_size,
    )


def kill(count: int, seed: int, folder: Path, layers: int = 12, say: Callable[[str], None] = lambda _: None) -> Kills:
    """Kill runs that replace a model with external data, at instants over all of their length; half while they write.

    Every third run writes over its own input. After each, the output must be wholly the old or the new model, and the
    next run must leave nothing but its result, and the data of what it replaced.

    Args:
        count: How many; runs that are over before they can be killed do not count.
        seed: When.
        folder: An empty folder.
        layers: How large the models are.
        say: Told about progress.
    """
    draw, result = random.Random(seed), Kills()
    models = _prepared(folder, layers)
    spans = [_run_and_kill(models.source, folder / "timed.onnx", None) for _ in range(3)]
    whole, writing = (sorted(span[place] for span in spans)[1] for place in (0, 1))
    say(f"a run takes {whole * 1000:.0f} ms, {writing * 1000:.0f} ms of them to write {models.data_bytes} bytes")
    number = -1
    while result.killed < count:
        number += 1
        delay = draw.uniform(0, writing if number % 2 else whole) * 1.05
        _kill_once(models, folder / "trial", number, delay, result)
    return result


def _kill_once(models: _Models, trial: Path, number: int, delay: float, result: Kills) -> None:
    """Kill one run in a folder of its own, and check what it leaves."""
    overwrites = number % 3 == 2
    shutil.rmtree(trial, ignore_errors=True)
    shutil.copytree(models.in_place if overwrites else models.replaced, trial)
    output = trial / _OUTPUT
    ended, saving = _run_and_kill(output if overwrites else models.source, output, (bool(number % 2), delay))
    result.finished += ended > 0
    result.killed += ended <= 0
    result.saving += ended <= 0 < saving
    left, instant = _names(trial), f"kill {number} after {delay:.4f} s"
    try:
        digest = _digest(output)
    except Exception as error:
        result.wrong.append(f"{instant}: the output does not load: {error}")
        return
    is_new = digest == models.new
    if not is_new and digest != (models.original if overwrites else models.old):
        result.wrong.append(f"{instant}: the output is neither the old nor the new model")
        return
    result.new += is_new
    result.old += not is_new
    in_use = _in_use(output)
    result.littered += bool(left - in_use) and ended <= 0
    result.wrong += [f"{instant}: {fault}" for fault in _faults_of_next_runs(models, output, in_use)]


def _faults_of_next_runs(models: _Models, output: Path, in_use: set[str]) -> Iterator[str]:
    """Run twice more; the first may leave the files that were in use before, the second only its own."""
    _replace(models.other, output)
    stray = _names(output.parent) - in_use - _in_use(output)
    if stray or _digest(output) != models.last:
        yield f"the next run left {sorted(stray)}"
    _replace(models.other, output)
    if _names(output.parent) != _in_use(output):
        yield "the run after the next left stray files"


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _in_use(path: Path) -> set[str]:
    """The file of a model and the data files that it refers to."""
    proto = onnx.load(path, load_external_data=False)
    return {path.name} | {entry.value for tensor in proto.graph.initializer for entry in tensor.external_data[:1]}


def _run_and_kill(source: Path, output: Path, when: tuple[bool, float] | None) -> tuple[float, float]:
    """Optimize in a forked process, which has everything imported already.

    Args:
        source: The model.
        output: Where the result goes.
        when: Whether the delay counts from the moment when writing begins, and the delay; None kills nobody.

    Returns:
        Seconds that the whole run took, and that writing took; 0 if it was killed, or -1, 1 if killed while it wrote.
    """
    reading, writing = os.pipe()
    started = time.perf_counter()
    child = os.fork()
    if not child:
        os.setsid()  # what it starts goes with it
        code = 1
        try:
            result = optimize(source, verify=False)
            os.write(writing, b"s")
            result.save(output, external_data="copy")
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        if when is None:
            pipe.read(1)
            middle = time.perf_counter()
            _, status = os.waitpid(child, 0)
            if status:
                raise RuntimeError("a run that nobody kills failed")
            return time.perf_counter() - started, time.perf_counter() - middle
        from_writing, delay = when
        begun = bool(pipe.read(1)) if from_writing else False
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                raise RuntimeError("a run failed before it was killed")
            return time.perf_counter() - started, 0.0
        return 0.0, float(begun or bool(pipe.read(1)))
