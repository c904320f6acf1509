"""One model is timed against another one: what is asked of the processes, and what is made of their answers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortopt.measurement import asking
from ortopt.measurement.pairs import BRIEF, Pair, Sample, compare, interval, sample
from ortopt.serialization.save import save
from ortopt.system.child_processes import Outcome
from ortopt.testing import parse
from ortopt.verification.input_sets import store_inputs


class Answers:
    """Child processes in which calls take as long as ratios say, and the orders that they were given."""

    def __init__(self, *ratios: list[float]) -> None:
        self.ratios = ratios
        self.orders: list[dict[str, Any]] = []

    def run(self, module: str, *, request: bytes, **_: Any) -> Outcome:
        assert module == "ortopt.measurement.child"
        (order,) = json.loads(request)["each"]
        self.orders.append(order)
        pairs = [([ratio / 2 for ratio in own], [0.5] * len(own)) for own in self.ratios]
        calls = [pair if order["models"][0] == "a" else pair[::-1] for pair in pairs]
        return Outcome(json.dumps({"each": [{"calls": calls}]}).encode(), 0)


def compared(monkeypatch: pytest.MonkeyPatch, answers: Answers, **more: Any) -> Any:
    monkeypatch.setattr(asking.child_processes, "run", answers.run)
    return compare(Path("a"), Path("b"), [Path("i")] * len(answers.ratios), replace(BRIEF, **more))


def test_it_ends_early_where_it_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers([1.2] * 10, [0.9] * 10)
    faster, slower = compared(monkeypatch, answers, rounds=7)
    assert len(answers.orders) == 2
    assert (faster.low, faster.median, faster.high) == pytest.approx((1.2, 1.2, 1.2))
    assert slower.median == pytest.approx(0.9)
    assert faster.seconds == 0.6


def test_the_models_change_places(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers([1.0, 1.3, 0.8, 1.1])
    (speed,) = compared(monkeypatch, answers, rounds=4)
    assert [order["models"] for order in answers.orders] == [["a", "b"], ["b", "a"]] * 2
    assert speed.low < speed.median < speed.high


def test_calls_without_any_time_are_not_counted() -> None:
    assert Sample.of([0.0, 2.0], [1.0, 1.0]) == Sample((2.0,), 2.0)
    assert Sample.of([0.0], [1.0]).error == "no call took any time"


def test_no_process_is_started_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers([1.0, 1.5])
    monkeypatch.setattr(asking.child_processes, "run", answers.run)
    assert compare(Path("a"), Path("b"), [Path("i")], deadline=0.0) is not None
    assert len(answers.orders) == 1


def test_a_process_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking.child_processes, "run", lambda *_, **__: Outcome(b"", -9))
    assert compare(Path("a"), Path("b"), [Path("i")]) is None


def test_two_models_that_run(tmp_path: Path) -> None:
    small = tmp_path / "small.onnx"
    save(parse("main (float[N,4] x) => (float[N,4] y) { y = Neg (x) }"), small)
    store_inputs({"x": np.ones((2, 4), np.float32)}, tmp_path / "inputs")
    brief = replace(BRIEF, rounds=2, repeat=3)
    (speed,) = compare(small, small, [tmp_path / "inputs"], brief) or ()
    assert 0 < speed.low <= speed.median <= speed.high
    assert speed.seconds > 0
    store_inputs({"other": np.ones((2, 4), np.float32)}, tmp_path / "wrong")
    assert compare(small, small, [tmp_path / "wrong"], brief) is None


_BARE = """#!/bin/sh
shift
code="$1"
shift
exec {python} -c "import sys
for name in ('onnx', 'onnx_ir', 'msgspec', 'sympy'):
    sys.modules[name] = None
$code" "$@"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a script of sh stands for another Python")
def test_another_python_needs_numpy_and_the_runtime_alone(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(_BARE.format(python=sys.executable))
    python.chmod(0o755)
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx")]
    for path in paths:
        save(parse("main (float[2] x) => (float[2] y) { y = Relu (x) }"), path)
    store_inputs({"x": np.ones(2, np.float32)}, tmp_path / "in")
    budget = replace(BRIEF, repeat=3, interpreter=str(python))
    (one,) = sample([Pair(*paths, (tmp_path / "in",))], budget)
    assert not one.error
    assert len(one.ratios) == 3


def test_an_interval_holds_the_median_and_leaves_extremes_out() -> None:
    low, median, high = interval([float(sample) for sample in range(101)])
    assert median == 50
    assert 35 < low < 45
    assert 55 < high < 65
    assert interval([2.0]) == (2.0, 2.0, 2.0)
    low, median, high = interval([float(sample) for sample in range(5001)])  # more than floats can count
    assert 2420 < low < median == 2500 < high < 2580
