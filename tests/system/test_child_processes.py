"""Child processes: how they start and end, their limits, and that nothing which libraries print disturbs them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fuzzing import campaign
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.in_turns import Version, measure_once
from ortopt.opset_conversion.converter import _run
from ortopt.system import child_processes
from ortopt.system.child_processes import GREETING, Outcome, answers_in, end, run, skip_to_answers, spawn
from ortopt.testing import parse
from ortopt.verification import start as verification_start
from ortopt.verification.input_sets import store_inputs
from ortopt.verification.runner import outputs_of
from ortopt.verification.verify import verify

MODEL = "main (float[N,4] x) => (float[N,4] y) { y = Relu (x) }"

NOISE = """
import os, sys, threading, time
os.write(1, b'{"outputs": [], "seconds": 0}\\nand half a line')
os.write(2, b'{"rows": []}\\n')
sys.stdout.write("kept in Python's own buffer\\n")

def everywhere():
    while True:
        os.write(1, b'*** EP Error \\xff ***\\n')
        os.write(2, b'*** EP Error ***\\n')
        print("Falling back", flush=True)
        time.sleep(0.001)

threading.Thread(target=everywhere, daemon=True).start()
"""


@pytest.fixture
def noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python process that starts prints to both descriptors, from its first moment to its last."""
    (tmp_path / "sitecustomize.py").write_text(NOISE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))  # which is handed on to children
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.mark.usefixtures("noisy")
def test_a_worker_that_verifies_is_understood() -> None:
    model = parse(MODEL)
    assert verify(model, model).status == "verified"
    wrong = verify(model, parse(MODEL.replace("Relu", "Neg")))
    assert wrong.status == "differs"
    given = {"x": -np.ones((2, 4), np.float32)}
    assert not outputs_of(model, given)["y"].any()


@pytest.mark.usefixtures("noisy")
def test_one_that_started_early_too() -> None:
    with verification_start.early():
        assert verify(parse(MODEL), parse(MODEL)).status == "verified"


@pytest.mark.usefixtures("noisy")
def test_one_that_dies_is_not_understood_as_anything() -> None:
    start = "main (float[1,1,4,4] x) => (float[1,1,4,4] y) { w = Constant <value = float[1,1,1,1] {1}> () y = Conv "
    found = verify(parse(start + "(x, w) }"), parse(start + "<group = 0> (x, w) }"))
    assert found.status == "differs"
    assert "the result does not" in found.reason


@pytest.mark.usefixtures("noisy")
def test_a_measurement_is_understood(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {MODEL}'), tmp_path / "a.onnx")
    store_inputs({"x": np.ones((2, 4), np.float32)}, tmp_path / "in")
    found = measure_once(Version(0, tmp_path / "a.onnx"), tmp_path / "in", MeasurementBudget(repeat=1, seconds=0.01))
    assert found.get("error") is None
    assert found["calls"]


@pytest.mark.usefixtures("noisy")
def test_a_conversion_is_understood() -> None:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {MODEL}')
    (answer,) = _run([model.SerializeToString()], 18, NEVER)
    assert isinstance(answer, bytes)
    assert onnx.ModelProto.FromString(answer).opset_import[0].version == 18


@pytest.mark.usefixtures("noisy")
def test_a_fuzzing_worker_is_understood() -> None:
    said: list[str] = []
    tally = campaign.campaign(0, 1, seconds=None, out=None, say=said.append)
    assert not tally.found
    assert not tally.crashes


def test_answers_begin_after_the_greeting() -> None:
    assert answers_in(b"noise" + GREETING + b"answer") == b"answer"
    assert answers_in(b"noise") == b""
    stream = io.BytesIO(b"noise\nmore" + GREETING + b"answer\n")
    assert skip_to_answers(stream)
    assert stream.readline() == b"answer\n"
    assert not skip_to_answers(io.BytesIO(b"noise\n"))


# How a child starts and ends

Child = Callable[[str], str]


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    """Writes a module of which a child is made; it is found where this process would find it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(body: str) -> str:
        text = "import os, sys, time\nfrom ortopt.system.child_processes import *\n"
        (tmp_path / "a_child.py").write_text(f"{text}end_with(int(sys.argv[1]))\n{body}\n", encoding="utf-8")
        return "a_child"

    return write


ANSWERS = """
requests, answers = take_streams()
answers.write(requests.read().upper())
answers.flush()
"""


def test_a_request_is_answered(child: Child) -> None:
    assert run(child(ANSWERS), request=b"question", seconds=60) == Outcome(b"QUESTION", 0)


def test_arguments_come_after_the_parent(child: Child) -> None:
    module = child("take_streams()[1].write(repr(sys.argv[1:]).encode())")
    assert run(module, "a", "b", request=b"", seconds=60).answer == repr([str(os.getpid()), "a", "b"]).encode()


def test_without_a_request_nothing_is_read_or_answered(child: Child) -> None:
    module = child("take_streams()[1].write(b'answer')\nsys.exit(7 if sys.stdin.read() else 5)")
    assert run(module, seconds=60) == Outcome(b"", 5)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("request_", [None, b"x" * 1_000_000])
def test_a_signal_is_a_negative_status(child: Child, request_: bytes | None) -> None:
    assert run(child("os.kill(os.getpid(), 11)"), request=request_, seconds=60) == Outcome(b"", -11)


def test_a_child_that_fails_keeps_what_it_has_answered(child: Child) -> None:
    assert run(child(ANSWERS + "sys.exit(3)"), request=b"part", seconds=60) == Outcome(b"PART", 3)


def test_a_child_that_takes_too_long_is_ended(child: Child, started: list[subprocess.Popen[bytes]]) -> None:
    module = child(ANSWERS + "time.sleep(600)")
    start = time.monotonic()
    assert run(module, request=b"part", seconds=2).status is None
    assert run(module, seconds=0.2) == Outcome(b"", None)
    assert time.monotonic() - start < 30
    assert [process.returncode is not None for process in started] == [True, True]


def test_a_child_is_ended_when_the_token_is_set(child: Child, started: list[subprocess.Popen[bytes]]) -> None:
    token = CancellationToken()
    timer = threading.Timer(0.2, token.cancel)
    timer.start()
    with pytest.raises(OptimizationCancelled):
        run(child("time.sleep(600)"), request=b"", seconds=600, token=token)
    timer.join()
    assert started[0].returncode is not None


def test_a_program_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(OSError, match="python"):
        run("a_child", seconds=1)


def test_what_was_spawned_is_ended_with_its_pipes(child: Child) -> None:
    process = spawn(child("time.sleep(600)"))
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"what nobody reads")
    end(process)
    assert process.returncode is not None
    assert process.stdin.closed
    assert process.stdout.closed


@pytest.mark.skipif(sys.platform == "win32", reason="the parent's id cannot be asked for")
def test_a_child_does_not_outlive_its_parent(child: Child, tmp_path: Path) -> None:
    body = (
        "with open('pid.new', 'w') as file: file.write(str(os.getpid()))\nos.rename('pid.new', 'pid')\ntime.sleep(600)"
    )
    code = f"from ortopt.system.child_processes import spawn\nspawn({child(body)!r})\n"
    code += "import os, time\nwhile not os.path.exists('pid'): time.sleep(0.01)\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(1000):
        if not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes():
            return
        time.sleep(0.01)
    pytest.fail("it still runs")


@pytest.mark.skipif(sys.platform != "linux", reason="no such limit")
@pytest.mark.parametrize("kind", ["space", "data"])
def test_memory_is_limited(child: Child, kind: str) -> None:
    module = child(
        f"limit_memory({kind}=1 << 30)\nimport resource\nassert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0\n"
        "try:\n    bytearray(2 << 30)\nexcept MemoryError:\n    sys.exit(42)"
    )
    assert run(module, seconds=60).status == 42


def test_children_load_no_more_than_they_need(child: Child) -> None:
    module = child("take_streams()[1].write(' '.join(sys.modules).encode())")
    loaded = set(run(module, request=b"", seconds=60).answer.decode().split())
    assert not {"subprocess", "numpy", "onnx", "onnx_ir", "onnxruntime"} & loaded


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that have been started."""
    processes: list[subprocess.Popen[bytes]] = []

    def counted(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        processes.append(spawn(*arguments, **more))
        return processes[-1]

    monkeypatch.setattr(child_processes, "spawn", counted)
    return processes
