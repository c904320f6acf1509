"""``ortopt extract``: what it writes, what it says, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ortopt.serialization.load import load


def test_a_part_is_written(ortopt: Any, model: Path) -> None:
    told = ortopt("extract", model, "--inputs", "i", "--outputs", "y", "-o", "part.onnx").stdout
    assert told.endswith(f"written: part.onnx (2 of 5 nodes, {Path('part.onnx').stat().st_size} B)\n")
    assert "[N, 8]" in told
    graph = load("part.onnx").graph
    assert [value.name for value in (*graph.inputs, *graph.outputs)] == ["i", "y"]
    assert sorted(graph.initializers) == ["b", "w"]
    ortopt("optimize", "part.onnx", "-o", "better.onnx")


def test_as_data_and_with_new_names(ortopt: Any, model: Path) -> None:
    arguments = ("--inputs", "m,x", "--outputs", "y", "--outputs", "r", "--rename", "m=product")
    data = json.loads(ortopt("extract", model, *arguments, "-o", "part.onnx", "--json").stdout)
    assert data["nodes"] == {"model": 5, "part": 3}
    assert data["initializers"] == 1
    assert [value["name"] for value in data["inputs"]] == ["product", "x"]
    assert [value["shape"] for value in data["outputs"]] == [["N", 4], ["N", 8]]
    assert (data["output"], data["data"]) == ("part.onnx", None)


def test_a_part_goes_to_a_stream(ortopt: Any, model: Path) -> None:
    done = ortopt("extract", "-", "--outputs", "m", "-o", "-", stdin=model.read_bytes())
    assert [node.op_type for node in load(done.stdout_bytes).graph] == ["Identity", "MatMul"]
    assert "written: stdout" in done.stderr


def test_weights_go_beside_the_part_on_request(ortopt: Any, model: Path) -> None:
    data = json.loads(
        ortopt("extract", model, "--outputs", "m", "-o", "part.onnx", "--external-data", "copy", "--json").stdout
    )
    assert load("part.onnx").graph.initializers.keys() == {"w"}
    assert data["data"] is None or Path(data["data"]).is_file()


LONG = "a/very/long/name/of/a/module/that/an/exporter/gives/a/value/as/torch/does"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("sizes", [[], ["--dim", "N=1"]])
def test_screens_keep_names_and_numbers_whole(
    ortopt: Any, model: Path, width: int, sizes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortopt.reporting.report.PIPE_WIDTH", width)
    ortopt("extract", model, "--inputs", "m", "--outputs", "y", "-o", "part.onnx", "--rename", f"m={LONG}")
    shown = ortopt("info", "part.onnx", *sizes).stdout
    assert LONG in shown
    shown = ortopt("info", model, *sizes).stdout
    assert max(map(len, shown.splitlines())) <= width
    for text in ("32*N" if not sizes else "32", "[1, 8]" if sizes else "[N, 8]", "FLOAT", "MatMul"):
        assert text in shown
