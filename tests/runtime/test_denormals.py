"""Denormals are zero in the kernels of sessions that were asked for it, whoever calls, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from ortopt.errors import UsageError
from ortopt.runtime import denormals
from ortopt.runtime.session import InferenceSession
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.runtime.models import TWO_GROUPS
from tests.runtime.side_by_side import PARALLEL, SEQUENTIAL, bound, called_back, quiet, value

HERE = denormals._environment() is not None
pytestmark = pytest.mark.skipif(not HERE, reason="the flags of this machine are not known")

SCALED = to_bytes(parse("main (float[N] x) => (float[N] y) <float s = {1.0000001}> { y = Mul (x, s) }"))
SMALL = np.full(6, 1e-40, np.float32)


def keeps_denormals() -> bool:
    """Whether this thread computes with them."""
    return bool(np.all(SMALL * np.float32(1)))


@pytest.mark.parametrize("x", [1e-40, -1e-40, 2e-45])
def test_denormals_are_zero_where_it_was_asked_for(x: float) -> None:
    feed = {"x": np.full(3, x, np.float32)}
    flushing, plain = InferenceSession(SCALED, denormals_as_zero=True), InferenceSession(SCALED)
    assert not np.any(flushing.run(None, feed)[0])
    assert np.all(plain.run(None, feed)[0])
    assert keeps_denormals()


def test_other_numbers_stay() -> None:
    x = np.array([np.finfo(np.float32).tiny, -1.5, np.inf, np.nan, 0, 3e38], np.float32)
    (y,) = InferenceSession(SCALED, denormals_as_zero=True).run(None, {"x": x})
    np.testing.assert_array_equal(y, InferenceSession(SCALED).run(None, {"x": x})[0])


def test_all_threads_of_a_session_agree() -> None:
    x = np.full(500_000, 1e-40, np.float32)
    session = InferenceSession(SCALED, quiet(intra_op_num_threads=3), denormals_as_zero=True)
    assert not np.any(session.run(None, {"x": x})[0])


def test_every_way_to_run() -> None:
    session = InferenceSession(SCALED, denormals_as_zero=True)
    assert not np.any(session.run_with_ort_values(None, {"x": value(SMALL)})[0].numpy())
    assert not np.any(bound(session, {"x": value(SMALL)}, ["y"]).get_outputs()[0].numpy())
    (found,), _, error = called_back(session, None, {"x": SMALL})
    assert (bool(np.any(found)), error) == (False, "")
    assert keeps_denormals()


@pytest.mark.parametrize("mode", [SEQUENTIAL, PARALLEL])
def test_groups(mode: onnxruntime.ExecutionMode) -> None:
    options = quiet(intra_op_num_threads=2, execution_mode=mode)
    feed = {"x": SMALL[:4].reshape(1, 4)}
    model = TWO_GROUPS.replace("{1, 2, 3, 4}", "{0, 0, 0, 0}")
    session = InferenceSession(to_bytes(parse(model)), options, denormals_as_zero=True)
    assert len(session.groups) > 1
    _, t = session.run(None, feed)
    assert not np.any(t)
    assert np.all(InferenceSession(to_bytes(parse(model))).run(None, feed)[1])
    assert keeps_denormals()


def test_a_call_that_fails_leaves_the_flags_as_they_were() -> None:
    session = InferenceSession(SCALED, denormals_as_zero=True)
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT|Invalid"):
        session.run(None, {"x": np.zeros((2, 2), np.float32)})
    assert keeps_denormals()


def test_the_options_of_the_caller_stay_as_they_were() -> None:
    options = onnxruntime.SessionOptions()
    InferenceSession(SCALED, options, denormals_as_zero=True)
    with pytest.raises(RuntimeError, match="does not have"):
        options.get_session_config_entry(denormals.ENTRY)
    assert np.all(onnxruntime.InferenceSession(SCALED, options).run(None, {"x": SMALL})[0])


def test_the_first_session_of_a_process_leaves_the_flags_of_its_thread() -> None:
    code = (
        "import numpy as np; from tests.runtime.test_denormals import *;"
        "session = InferenceSession(SCALED, denormals_as_zero=True);"
        "assert not np.any(session.run(None, {'x': SMALL})[0]);"
        "assert keeps_denormals();"
        "assert np.all(onnxruntime.InferenceSession(SCALED).run(None, {'x': SMALL})[0])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_the_pool_of_the_process_cannot_be_told() -> None:
    with pytest.raises(UsageError, match="global thread pool cannot be told"):
        InferenceSession(SCALED, thread_pool="global", denormals_as_zero=True)


def test_a_machine_whose_flags_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denormals, "_environment", lambda: None)
    with pytest.raises(UsageError, match="Linux on x86-64 only"):
        InferenceSession(SCALED, denormals_as_zero=True)
