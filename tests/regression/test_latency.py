"""``ortopt check --latency``: the sizes at which it measures, what it says of them, and why it may not measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortopt.cli import check_run
from ortopt.measurement.in_turns import Failure
from ortopt.regression import latency
from ortopt.regression.latency import Latency
from ortopt.serialization.save import save
from ortopt.testing import parse
from ortopt.verification.input_sets import inputs_from
from tests.reporting.test_page import data_of

IMAGE = "main (float[N,3,H,W] x) => (float[N,3,H,W] y) { a = Neg (x) b = Neg (a) y = Relu (b) }"
TOKENS = "main (int64[batch,seq] ids) => (int64[batch,seq] y) { a = Neg (ids) b = Neg (a) y = Add (b, ids) }"


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The shapes of the inputs of each measurement; every result is a fifth faster."""
    shapes: list[dict[str, Any]] = []

    def measure(_versions: Any, inputs: Path, _budget: Any) -> list[float]:
        shapes.append({name: list(value.shape) for name, value in inputs_from(inputs).items()})
        return [0.8] * 9

    monkeypatch.setattr(check_run, "Latency", lambda *_, **__: Latency(measure=measure))
    for name, text in {"image": IMAGE, "tokens": TOKENS}.items():
        save(parse(text), tmp_path / f"{name}.onnx")
    return shapes


def test_latency_is_measured_at_representative_sizes_that_are_told(check: Any, measured: list[dict[str, Any]]) -> None:
    files = ("--json", "r.json", "--html", "r.html", "--junit", "r.xml")
    said = check("image.onnx", "tokens.onnx", "--latency", *files).stdout
    assert sorted(measured, key=str) == [{"ids": [1, 128]}, {"ids": [1, 16]}, {"x": [1, 3, 224, 224]}]
    one = "latency 0.80× the original's (95 %: 0.80× to 0.80×) at N=1, H=224, W=224"
    two = "): 0.80× at batch=1, seq=16, 0.80× at batch=1, seq=128"
    page = json.dumps(data_of(Path("r.html").read_text()), ensure_ascii=False)
    for text in (said, page, Path("r.xml").read_text()):
        assert one in " ".join(text.split())
        assert two in " ".join(text.split())
    (_, tokens) = json.loads(Path("r.json").read_text())["models"]
    at = tokens["facts"]["latency"]["at"]
    assert [(row["sizes"], row["inputs"], row["fallback"]) for row in at] == [
        ({"batch": 1, "seq": 16}, "ids int64[1, 16]", None),
        ({"batch": 1, "seq": 128}, "ids int64[1, 128]", None),
    ]


@pytest.mark.parametrize(
    ("arguments", "shapes"),
    [
        (("--dim", "seq=7"), [[1, 7]]),
        (("--dim-hint", "batch=2,seq=3..5"), [[2, 3], [2, 5]]),
        (("--input-shape", "ids=4,9"), [[4, 9]]),
        (("--inputs", "ids.npz"), [[3, 6]]),
    ],
)
def test_latency_at_sizes_of_the_user(
    check: Any, measured: list[dict[str, Any]], arguments: tuple[str, ...], shapes: list[list[int]]
) -> None:
    np.savez("ids.npz", ids=np.ones((3, 6), np.int64))
    check("tokens.onnx", "--latency", *arguments)
    assert [row["ids"] for row in measured] == shapes
    if arguments[0] == "--inputs":
        assert "--inputs is for one model" in check("tokens.onnx", "image.onnx", *arguments, code=1).stderr


def test_a_manifest_gives_sizes(check: Any, measured: list[dict[str, Any]]) -> None:
    np.savez("ids.npz", ids=np.ones((3, 6), np.int64))
    text = Path("ortopt-zoo.toml")
    text.write_text('models = ["tokens.onnx"]\n[defaults]\ndim_hint = {seq = [3, 5]}\n')
    check(text, "--latency")
    assert [row["ids"] for row in measured] == [[1, 3], [1, 5]]
    text.write_text('models = ["tokens.onnx"]\n[[model]]\nmatch = "*"\ninputs = "ids.npz"\n')
    check(text, "--latency")
    assert measured[2:] == [{"ids": [3, 6]}]


def test_latencies_at_other_sizes_are_not_compared(check: Any, measured: list[dict[str, Any]]) -> None:
    only = ("tokens.onnx", "--baseline", "b.json", "--latency")
    check(*only, "--dim-hint", "seq=1", "--update")
    baseline = Path("b.json")
    data = json.loads(baseline.read_text())
    data["models"]["tokens.onnx"]["latency"] |= {"ratio": 0.1, "low": 0.1, "high": 0.1}
    data["models"]["tokens.onnx"]["options"] = ""
    baseline.write_text(json.dumps(data))
    assert "the baseline's was measured at other sizes and is not compared" in check(*only).stdout
    check(*only, "--update")
    assert json.loads(baseline.read_text())["models"]["tokens.onnx"]["latency"]["ratio"] == 0.8


def test_why_a_latency_was_not_measured(check: Any, measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure("it is refused", opens=True, kind="Fail")
    monkeypatch.setattr(latency, "attempts", lambda *_: lambda _: failure)
    said = check("tokens.onnx", "--latency").stdout
    assert "its latency was not measured: the original cannot be run: it is refused" in " ".join(said.split())
    assert not measured
