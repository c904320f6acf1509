"""Pixels are regrouped with their channels last, which ONNX Runtime reorders without a Transpose of its own."""

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
from ortopt.testing import parse, run

PASS = "unfolded_image_reordering"
WEIGHT = "float[4,1,1,1] w = {1, -2, 3, 4}"
CONV = "Conv <group = 4>"


def unfold(
    x: str = "float[1,4,4,6]",
    shapes: tuple[str, str] = ("8, 2, 3, 2", "1, 4, 6, 4"),
    perms: tuple[str, str] = ("0, 2, 1, 3", "0, 3, 2, 1"),
    conv: str = f"{CONV} (x, w)",
    more: str = "",
    last: str = "y = Neg (n)",
) -> str:
    """An image of 4x6 of which each block of 2x2 gives a pixel to each of four sequences."""
    return f"""main ({x} x) => (float[] y{more and ", float[] z"}) <{WEIGHT}, int64[4] r = {{{shapes[0]}}},
        int64[4] s = {{{shapes[1]}}}> {{
        i = {conv} j = Reshape (i, r) k = Transpose <perm = [{perms[0]}]> (j) m = Reshape (k, s)
        n = Transpose <perm = [{perms[1]}]> (m) {last} {more} }}"""


def fold(
    x: str = "float[1,4,6,4]",
    shapes: tuple[str, str] = ("8, 3, 2, 2", "1, 4, 4, 6"),
    perms: tuple[str, str] = ("0, 3, 2, 1", "0, 2, 1, 3"),
    conv: str = f"{CONV} (i, w)",
    more: str = "",
) -> str:
    """The way back."""
    return f"""main ({x} x, float[4,1,1,1] u) => (float[] y{more and ", float[] z"}) <{WEIGHT},
        int64[4] r = {{{shapes[0]}}}, int64[4] s = {{{shapes[1]}}}> {{
        a = Abs (x) n = Transpose <perm = [{perms[0]}]> (a) m = Reshape (n, r)
        k = Transpose <perm = [{perms[1]}]> (m) i = Reshape (k, s) y = {conv} {more} }}"""


STRIPS = f"""main (float[B,4,4,6] x) => (float[] y) <{WEIGHT}, int64[3] r = {{0, 4, 24}}> {{
    i = {CONV} (x, w) j = Reshape (i, r) k = Transpose <perm = [2, 0, 1]> (j) n = Transpose <perm = [1, 0, 2]> (k)
    y = Neg (n) }}"""


def test_an_empty_batch() -> None:
    after = parse(STRIPS)
    assert run(PASS, after)[0]
    x = np.zeros((0, 4, 4, 6), np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    shapes = [
        ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].shape
        for model in (parse(STRIPS), after)
    ]
    assert shapes == [(0, 24, 4)] * 2


def test_its_own_results() -> None:
    for text, because in (
        (unfold(), "the channels go last already"),
        (fold(), "the channels come from the end already"),
    ):
        model = parse(text)
        assert run(PASS, model)[0]
        changed, context = run(PASS, model)
        assert not changed
        assert because in str(context.refusals)


BOTH = f"""main (float[1,4,4,6] x) => (float[] y) <{WEIGHT}, int64[4] r = {{8, 2, 3, 2}}, int64[4] s = {{1, 4, 6, 4}},
    int64[4] t = {{8, 3, 2, 2}}, int64[4] u = {{1, 4, 4, 6}}> {{
    i = {CONV} (x, w) j = Reshape (i, r) k = Transpose <perm = [0, 2, 1, 3]> (j) m = Reshape (k, s)
    n = Transpose <perm = [0, 3, 2, 1]> (m) a = Softmax <axis = -1> (n) o = Transpose <perm = [0, 3, 2, 1]> (a)
    p = Reshape (o, t) q = Transpose <perm = [0, 2, 1, 3]> (p) v = Reshape (q, u) y = {CONV} (v, w) }}"""


def test_onnxruntime_reorders_without_a_transpose(tmp_path: Path) -> None:
    """The outer Transposes become part of the reorderings when the result is loaded."""
    after = parse(BOTH)
    assert run(PASS, after)[0]
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(to_bytes(after), options, providers=["CPUExecutionProvider"])
    ops = Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)
    if "ReorderInput" not in ops:
        pytest.skip("this processor has no blocked kernels")
    assert ops["Transpose"] == 2, ops
    assert ops["ReorderInput"] == ops["ReorderOutput"] == 2, ops


def test_other_passes_make_no_single_transpose_of_both() -> None:
    """Where there may be several images, they would: then the images stay as they are."""
    for batch, shape in (("1", "1, 4, 2, 2, 3, 2"), ("B", "0, 4, 2, 2, 3, 2"), ("2", "2, 4, 2, 2, 3, 2")):
        text = f"""main (float[{batch},4,4,6] x) => (float[] y) <{WEIGHT}, int64[6] r = {{{shape}}},
            int64[4] s = {{-1, 4, 6, 4}}> {{
            i = {CONV} (x, w) j = Reshape (i, r) k = Transpose <perm = [0, 3, 5, 2, 4, 1]> (j) n = Reshape (k, s)
            y = Softmax <axis = -1> (n) }}"""
        ops = figures(optimize(parse(text), level=3, verify=False).model).ops
        assert ops["Transpose"] == (2 if batch == "1" else 1)


def test_a_second_run_changes_nothing() -> None:
    result = optimize(parse(BOTH), level=3, verify=False)
    assert figures(result.model).ops == {"Conv": 2, "Reshape": 4, "Softmax": 1, "Transpose": 4}
    again = optimize(result.model, level=3, verify=False)
    assert to_bytes(again.model) == to_bytes(result.model)
