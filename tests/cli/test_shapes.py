"""Sizes, names and declared types on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ortopt.serialization.load import load
from ortopt.serialization.save import save
from ortopt.testing import parse

POSITIONS = """
main (float[N,4,2] x) => (float[N,4,2] y) {
    p = Constant <value = float[1,4,2] {1,2,3,4,5,6,7,8}> ()
    y = Add (x, p)
}"""

POOLED = """
main (float[N,3,8,8] x, float[N,M] z) => (float[a,b,c,d] y, float[e,f] r) {
    y = GlobalAveragePool (x)
    r = Neg (z)
}"""


def shapes(path: Path) -> list[list[int | str | None]]:
    """The declared shapes of a file's inputs and outputs."""
    graph = load(path).graph
    return [
        [d if isinstance(d, int) else d.value for d in value.shape or ()] for value in (*graph.inputs, *graph.outputs)
    ]


def test_sizes_may_be_separated_by_commas(ortopt: Any, model: Path) -> None:
    save(parse(POOLED), model)
    ortopt("optimize", model, "-o", "o.onnx", "--dim", "N=2,M=5")
    assert shapes(Path("o.onnx")) == [[2, 3, 8, 8], [2, 5], [2, 3, 1, 1], [2, 5]]
    ortopt("optimize", model, "-o", "o.onnx", "--dim", "M=5", "--input-shape", "x=1,3,9,7", "--json", "r.json")
    assert shapes(Path("o.onnx")) == [[1, 3, 9, 7], [1, 5], [1, 3, 1, 1], [1, 5]]
    report = json.loads(Path("r.json").read_text())
    assert report["verified"]
    assert report["options"]["input_shapes"] == {"x": [1, 3, 9, 7]}


def test_explain_and_bisect_take_shapes(ortopt: Any, model: Path) -> None:
    save(parse(POOLED), model)
    ortopt("explain", model, "constant_folding", "--input-shape", "x=1,3,4,4")
    ortopt("bisect", model, "--input-shape", "x=1,3,4,4")


def test_new_names(ortopt: Any, model: Path) -> None:
    save(parse(POSITIONS), model)
    np.savez("x.npz", x=np.ones((2, 4, 2), np.float32))
    ortopt("optimize", model, "-o", "o.onnx", "--rename", "x=pixels", "--rename", "y=scores", "--inputs", "x.npz")
    graph = onnx.load("o.onnx").graph
    assert [value.name for value in (*graph.input, *graph.output)] == ["pixels", "scores"]


def test_value_info_and_its_price(ortopt: Any, model: Path) -> None:
    save(
        parse(
            """main (float[N,S,4] x, float[N,S,4] z) => (float[N,S,4] y) {
                w = Constant <value = float[4] {1,2,3,4}> ()
                q = Relu (z)
                a = Add (x, q)
                y = LayerNormalization (a, w)
            }"""
        ),
        model,
    )
    proto = onnx.load(model)
    del proto.graph.value_info[:]
    onnx.save(proto, model)
    ortopt("optimize", model, "-o", "none.onnx", "-O1")
    assert not onnx.load("none.onnx").graph.value_info
    told = ortopt("optimize", model, "-o", "all.onnx", "-O1", "--value-info")
    assert {info.name for info in onnx.load("all.onnx").graph.value_info} == {"q", "a"}
    assert "joins 1 Add with the LayerNormalization behind it" in told.stderr
    assert "joins" not in ortopt("optimize", model, "-o", "good.onnx", "--value-info").stderr
