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
from ortopt.testing import check_rewrites, parse, run
from tests.passes.tables import keeps

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


def test_an_image_becomes_rows() -> None:
    after = f"""main (float[1,4,4,6] x) => (float[] y) <{WEIGHT}, int64[5] s = {{2, 2, 3, 2, 4}},
        int64[4] t = {{1, 4, 6, 4}}> {{
        i = {CONV} (x, w) j = Transpose <perm = [0, 2, 3, 1]> (i) k = Reshape (j, s)
        m = Transpose <perm = [1, 3, 0, 2, 4]> (k) n = Reshape (m, t) y = Neg (n) }}"""
    check_rewrites(PASS, unfold(), after)


def test_rows_become_an_image() -> None:
    after = f"""main (float[1,4,6,4] x, float[4,1,1,1] u) => (float[] y) <{WEIGHT}, int64[5] s = {{2, 2, 2, 3, 4}},
        int64[4] t = {{1, 4, 6, 4}}> {{
        a = Abs (x) k = Reshape (a, s) m = Transpose <perm = [2, 0, 3, 1, 4]> (k) n = Reshape (m, t)
        i = Transpose <perm = [0, 3, 1, 2]> (n) y = {CONV} (i, w) }}"""
    check_rewrites(PASS, fold(), after)


WINDOWS = f"""main (float[1,4,4,6] x) => (float[] y) <{WEIGHT}, int64[6] r = {{0, 4, 2, 2, 3, 2}},
    int64[3] s = {{-1, 4, 4}}> {{
    i = {CONV} (x, w) j = Reshape (i, r) k = Transpose <perm = [0, 2, 4, 3, 5, 1]> (j) n = Reshape (k, s)
    y = Neg (n) }}"""


def test_one_transpose_of_single_elements() -> None:
    after = f"""main (float[1,4,4,6] x) => (float[] y) <{WEIGHT}, int64[5] r = {{2, 2, 3, 2, 4}},
        int64[3] s = {{6, 4, 4}}> {{
        i = {CONV} (x, w) t = Transpose <perm = [0, 2, 3, 1]> (i) j = Reshape (t, r)
        k = Transpose <perm = [0, 2, 1, 3, 4]> (j) n = Reshape (k, s) y = Neg (n) }}"""
    check_rewrites(PASS, WINDOWS, after)


STRIPS = f"""main (float[B,4,4,6] x) => (float[] y) <{WEIGHT}, int64[3] r = {{0, 4, 24}}> {{
    i = {CONV} (x, w) j = Reshape (i, r) k = Transpose <perm = [2, 0, 1]> (j) n = Transpose <perm = [1, 0, 2]> (k)
    y = Neg (n) }}"""


def test_several_images_whose_pixels_stay_in_order() -> None:
    after = f"""main (float[B,4,4,6] x) => (float[] y) <{WEIGHT}, int64[3] s = {{0, 24, 4}}> {{
        i = {CONV} (x, w) n = Transpose <perm = [0, 2, 3, 1]> (i) m = Reshape (n, s) y = Neg (m) }}"""
    check_rewrites(PASS, STRIPS, after)


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


def test_what_the_rows_are_split_into_stays() -> None:
    """The heads of a transformer come out of the rows, not out of the image."""
    heads = "n2 = Reshape (n, v) n3 = Transpose <perm = [0, 2, 1, 3]> (n2) y = Neg (n3)"
    text = unfold(last=heads).replace(f"<{WEIGHT}", f"<{WEIGHT}, int64[4] v = {{4, 6, 2, 2}}")
    check_rewrites(PASS, text, ops={"Transpose": 3, "Reshape": 3, "Conv": 1, "Neg": 1})


def test_two_convolutions_of_an_image() -> None:
    check_rewrites(PASS, fold(more=f"z = {CONV} (i, w)"), ops={"Transpose": 2, "Reshape": 2, "Conv": 2, "Abs": 1})


KEPT = {
    "there may be several images": WINDOWS.replace("[1,4,4,6]", "[B,4,4,6]"),
    "a Transpose of rows is next to it": STRIPS.replace("[2, 0, 1]", "[0, 2, 1]").replace(
        "n = Transpose <perm = [1, 0, 2]> (k)", "n = Abs (k)"
    ),
    "several images, and one Transpose": WINDOWS.replace("[1,4,4,6]", "[2,4,4,6]"),
    "the image is used elsewhere": unfold(more="z = Abs (i)"),
    "no image is before it or behind it": unfold(conv="Neg (x)"),
    "the channels do not go last": unfold(perms=("0, 2, 1, 3", "0, 3, 1, 2")),
    "a size of the image is not fixed": unfold("float[1,4,H,6]", ("-1, 2, 3, 2", "1, 4, -1, 4")),
    "the channels fit no blocks": unfold(
        "float[1,6,4,6]", ("12, 2, 3, 2", "1, 6, 6, 4"), conv=f"{CONV.replace('4', '1')} (x, v)"
    ).replace(f"<{WEIGHT}", f"<float[6,6,1,1] v = {{{', '.join('1' * 36)}}}"),
    "no image is before it": fold(more="z = Neg (i)"),
    "no image is before": fold(conv=f"{CONV} (i, u)"),
    "the channels do not come from the end": fold(perms=("0, 2, 1, 3", "0, 2, 1, 3")),
    "as many Transposes are left": f"""main (float[B,4,4,6] x) => (float[] y) <{WEIGHT}, int64[3] r = {{0, 4, 24}}> {{
        i = {CONV} (x, w) j = Reshape (i, r) k = Transpose <perm = [2, 0, 1]> (j) y = Neg (k) }}""",
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


test_results_of_the_graph = keeps(
    PASS,
    [
        ("the channels do not go last", unfold().replace("y = Neg (n) ", "").replace("n = Transpose", "y = Transpose")),
        ("no image is before it or behind it", fold().replace("(float[] y)", "(float[] y, float[] i)")),
    ],
)


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
