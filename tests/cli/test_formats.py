"""Results in other formats: what the name's ending asks for is written as such, and nothing goes to a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ortopt import optimize
from ortopt.errors import OutputError, UsageError
from ortopt.testing import parse

FEEDS = {"x": np.arange(16, dtype=np.float32).reshape(2, 8)}


def outputs(model: str | bytes) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"]).run(None, FEEDS))


@pytest.mark.parametrize("ending", ["json", "textproto", "PBTXT"])
def test_texts_are_onnx_s_own(ortopt: Any, model: Path, ending: str) -> None:
    done = ortopt("optimize", model, "-o", f"out.{ending}")
    assert f"written   out.{ending}\n" in done.stdout
    assert "nodes     5 → 2 " in done.stdout
    read = onnx.load(
        f"out.{ending.lower()}" if ending != "PBTXT" else "out.PBTXT", format=None if ending != "PBTXT" else "textproto"
    )
    assert [node.op_type for node in read.graph.node] == ["Gemm", "Relu"]
    for got, expected in zip(outputs(read.SerializeToString()), outputs(str(model)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_json_is_json(ortopt: Any, model: Path) -> None:
    ortopt("optimize", model, "-o", "out.json", "-q")
    assert {node["op_type"] for node in json.loads(Path("out.json").read_text())["graph"]["node"]} == {"Gemm", "Relu"}


def test_onnx_runtimes_own_format_runs_and_is_not_optimized_further(ortopt: Any, model: Path) -> None:
    ortopt("optimize", model, "-o", "out.ort")
    assert Path("out.ort").read_bytes()[4:8] == b"ORTM"
    for got, expected in zip(outputs("out.ort"), outputs(str(model)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert sorted(path.name for path in Path().iterdir()) == ["m.onnx", "out.ort"]


def test_a_profile_of_a_result_in_another_format(ortopt: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortopt.cli import profiled

    monkeypatch.setattr(profiled, "_PROCESSES", 1)
    monkeypatch.setattr(profiled, "_SECONDS", 0.0)
    data = json.loads(ortopt("optimize", model, "-o", "out.ort", "--profile", "--json", "-").stdout)
    assert data["profile"]["result"]
    assert data["profile"]["inputs"][0]["name"] == "x"


def test_a_model_that_onnx_runtime_does_not_load_has_no_such_format(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["": 17, "mine": 1]> main (float[N] x) => (float[N] y) { y = mine.Op (x) }'
    result = optimize(parse(text), verify=False)
    with pytest.raises(OutputError, match="ONNX Runtime cannot write this model in its own format"):
        result.save(tmp_path / "out.ort")
    assert list(tmp_path.iterdir()) == []


def test_a_library_call_takes_the_ending_too(model: Path, tmp_path: Path) -> None:
    result = optimize(model)
    result.save(tmp_path / "out.textproto")
    assert onnx.load(tmp_path / "out.textproto").graph.node[0].op_type == "Gemm"
    with pytest.raises(UsageError, match="holds its weights"):
        result.save(tmp_path / "out.json", external_data="copy")


def test_no_model_goes_to_a_terminal(ortopt: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortopt.cli import files, optimization

    class Terminal:
        buffer = None

        def isatty(self) -> bool:
            return True

    class Fake:
        stdout, stderr = Terminal(), sys.stderr

    monkeypatch.setattr(optimization, "sys", Fake)
    assert "a model is no text for a terminal" in ortopt("optimize", model, "-o", "-", code=1).stderr
    monkeypatch.setattr(files, "sys", Fake)
    assert "no text for a terminal" in ortopt("zoo", "grow", "superres__ts13", "-", code=1).stderr
