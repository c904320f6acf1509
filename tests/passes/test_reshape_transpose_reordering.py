"""Rows become an image, and an image becomes rows, by a Transpose that ONNX Runtime joins with its reordering."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse, run
from tests.passes.tables import keeps

PASS = "reshape_transpose_reordering"
WEIGHT = "float[4,1,1,1] w = {1, -2, 3, 4}"
CONV = "Conv <group = 4>"


def image(
    x: str = "float[B,6,4]", shape: str = "0, 4, 2, 3", more: str = "", perm: str = "0, 2, 1", conv: str = CONV
) -> str:
    """Rows of four channels that become an image of 2x3."""
    results = f"(float[] y{more and ', float[] z'})"
    return f"""main ({x} x, float[4,1,1,1] u) => {results} <{WEIGHT}, int64[4] s = {{{shape}}}> {{
        t = Transpose <perm = [{perm}]> (x) i = Reshape (t, s) y = {conv} (i, w) {more} }}"""


def rows(
    x: str = "float[B,4,2,3]",
    shape: str = "0, 4, -1",
    more: str = "",
    perm: str = "0, 2, 1",
    conv: str = f"{CONV} (x, w)",
) -> str:
    """An image of 2x3 that becomes rows of four channels."""
    return f"""main ({x} x) => (float[] y{more and ", float[] z"}) <{WEIGHT}, int64[3] s = {{{shape}}}> {{
        i = {conv} r = Reshape (i, s) y = Transpose <perm = [{perm}]> (r) {more} }}"""


@pytest.mark.parametrize(
    ("x", "shape"),
    [("float[B,6,4]", "0, 4, 2, 3"), ("float[B,6,4]", "-1, 4, 2, 3"), ("float[2,6,4]", "2, 4, -1, 3")],
)
def test_rows_become_an_image(x: str, shape: str) -> None:
    batch = 2 if "[2" in x else 0
    after = f"""main ({x} x, float[4,1,1,1] u) => (float[] y) <{WEIGHT}, int64[4] s = {{{batch}, 2, 3, 4}}> {{
        r = Reshape (x, s) i = Transpose <perm = [0, 3, 1, 2]> (r) y = {CONV} (i, w) }}"""
    check_rewrites(PASS, image(x, shape), after)


@pytest.mark.parametrize(
    ("x", "shape"), [("float[B,4,2,3]", "0, 4, -1"), ("float[B,4,2,3]", "-1, 4, 6"), ("float[2,4,2,3]", "2, 4, 6")]
)
def test_an_image_becomes_rows(x: str, shape: str) -> None:
    batch = 2 if "[2" in x else 0
    after = f"""main ({x} x) => (float[] y) <{WEIGHT}, int64[3] s = {{{batch}, 6, 4}}> {{
        i = {CONV} (x, w) t = Transpose <perm = [0, 2, 3, 1]> (i) y = Reshape (t, s) }}"""
    check_rewrites(PASS, rows(x, shape), after)


def test_two_convolutions_of_an_image() -> None:
    check_rewrites(PASS, image(more=f"z = {CONV} (i, w)"), ops={"Transpose": 1, "Reshape": 1, "Conv": 2})


KEPT = {
    "a size of the image is not fixed": image("float[B,6,C]", "0, 0, 2, 3", conv="Conv <group = 1>"),
    "the image is empty": image("float[B,0,4]", "0, 4, 0, 3", conv="Neg").replace("(i, w)", "(i)"),
    "the channels fit no blocks": image("float[B,6,6]", "0, 6, 2, 3"),
    "the blocked kernels are for single precision only": image("double[B,6,4]").replace("float", "double"),
    "the transposed rows are used elsewhere": image(more="z = Neg (t)"),
    "the rows are not all channels": image("float[6,B,4]", perm="1, 2, 0"),
    "the rows are not all channels of": image("float[2,6,4]", "1, 4, 4, 3"),
    "something else than convolutions reads the image": image(more="z = Neg (i)"),
    "something else than convolutions": image(conv="Mul"),
    "else than convolutions reads": image().replace("(i, w)", "(i, u)"),
    "the joined pixels are used elsewhere": rows(more="z = Neg (r)"),
    "the image is used elsewhere": rows(more="z = Neg (i)"),
    "the image is not in the blocked layout": rows(conv="Neg (x)"),
    "the rows are not all channels of each": rows("float[2,4,2,3]", "1, 8, 6"),
    "a size of the image is": rows("float[B,4,H,3]"),
    "the axes come apart": rows(perm="2, 0, 1"),
    "the image is a result of the graph": image(more="").replace("(float[] y)", "(float[] y, float[] i)"),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


BOTH = f"""main (float[B,6,4] x) => (float[] y) <{WEIGHT}, int64[4] s = {{0, 4, 2, 3}}, int64[3] e = {{0, 4, 6}}> {{
    a = Abs (x) t = Transpose <perm = [0, 2, 1]> (a) i = Reshape (t, s) c = {CONV} (i, w)
    r = Reshape (c, e) o = Transpose <perm = [0, 2, 1]> (r) y = Neg (o) }}"""


def test_an_empty_batch() -> None:
    after = parse(BOTH)
    assert run(PASS, after)[0]
    x = np.zeros((0, 6, 4), np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    shapes = [
        ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].shape
        for model in (parse(BOTH), after)
    ]
    assert shapes == [(0, 6, 4)] * 2


def test_onnxruntime_reorders_without_a_transpose(tmp_path: Path) -> None:
    """Both Transposes become part of the reorderings when the result is loaded."""
    after = parse(BOTH)
    assert run(PASS, after)[0]
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(to_bytes(after), options, providers=["CPUExecutionProvider"])
    ops = Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)
    if "ReorderInput" not in ops:
        pytest.skip("this processor has no blocked kernels")
    assert ops == {"Abs": 1, "Conv": 1, "Neg": 1, "ReorderInput": 1, "ReorderOutput": 1, "Reshape": 2}


def test_a_second_run_changes_nothing() -> None:
    result = optimize(parse(BOTH), level=3, verify=False)
    assert figures(result.model).ops == {"Abs": 1, "Conv": 1, "Neg": 1, "Reshape": 2, "Transpose": 2}
    again = optimize(result.model, level=3, verify=False)
    assert to_bytes(again.model) == to_bytes(result.model)
