"""What libraries print in a child process never gets between it and its parent."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from fuzzing import campaign
from ortopt.benchmarking.benchmark import Effort, Version, _measured
from ortopt.opset_conversion.conversion import _run
from ortopt.system.child_processes import GREETING, answers_in, skip_to_answers
from ortopt.testing import parse
from ortopt.verification import start as verification_start
from ortopt.verification.verify import outputs_of, verify

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
    np.savez(tmp_path / "in.npz", x=np.ones((2, 4), np.float32))
    found = _measured(Version(0, tmp_path / "a.onnx"), tmp_path / "in.npz", Effort(repeat=1, seconds=0.01))
    assert found.get("error") is None
    assert found["calls"]


@pytest.mark.usefixtures("noisy")
def test_a_conversion_is_understood() -> None:
    from ortopt.cancellation import NEVER

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
    stream = io.StringIO("noise\\nmore" + GREETING.decode() + "answer\\n")
    assert skip_to_answers(stream)
    assert stream.readline() == "answer\\n"
    assert not skip_to_answers(io.StringIO("noise\\n"))
