"""Clip after Relu becomes one Clip: in every type, with NaN, and never with bounds that cross."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites, parse, run
from tests.passes.tables import keeps

PASS = "relu_clip_fusion"
EDGES = np.array([np.nan, -np.inf, np.inf, -3, -0.0, 0, 0.5, 2, 5.5, 6, 7, 6e4])


@pytest.mark.parametrize(
    ("bounds", "operands", "after"),
    [
        ("float lo = {-1.0}, float hi = {6.0}", "lo, hi", "float lo = {0.0}, float hi = {6.0}"),
        ("float lo = {2.0}, float hi = {6.0}", "lo, hi", "float lo = {2.0}, float hi = {6.0}"),
        ("float hi = {6.0}", ", hi", "float lo = {0.0}, float hi = {6.0}"),
        ("float lo = {-2.0}", "lo", "float lo = {0.0}"),
        ("float hi = {0.0}", ", hi", "float lo = {0.0}, float hi = {0.0}"),
    ],
)
def test_one_clip(bounds: str, operands: str, after: str) -> None:
    hi = ", hi" if "hi" in after else ""
    check_rewrites(
        PASS,
        f"main (float[N] x) => (float[N] y) <{bounds}> {{ t = Relu (x) y = Clip (t, {operands}) }}",
        after=f"main (float[N] x) => (float[N] y) <{after}> {{ y = Clip (x, lo{hi}) }}",
        inputs={"x": EDGES.astype(np.float32)},
    )


def test_no_bounds() -> None:
    check_rewrites(
        PASS,
        "main (float[N] x) => (float[N] y) { t = Relu (x) y = Clip (t) }",
        after="main (float[N] x) => (float[N] y) <float lo = {0.0}> { y = Clip (x, lo) }",
    )


@pytest.mark.parametrize("dtype", ["double", "int8", "int32", "float16"])
def test_types_on_which_onnx_runtime_throws(dtype: str) -> None:
    six = "17920" if dtype == "float16" else "6"  # float16 is written in bits
    kind = np.dtype({"double": "float64"}.get(dtype, dtype))
    inputs = EDGES.astype(kind) if kind.kind == "f" else np.array([-128, -1, 0, 3, 6, 7, 127], kind)
    check_rewrites(
        PASS,
        f"main ({dtype}[N] x) => ({dtype}[N] y) <{dtype} hi = {{{six}}}> {{ t = Relu (x) y = Clip (t, , hi) }}",
        ops={"Relu": 0, "Clip": 1},
        inputs={"x": inputs},
    )


@pytest.mark.parametrize("dtype", ["int16", "int64", "bfloat16"])
def test_types_that_have_no_relu_on_the_cpu(dtype: str) -> None:
    check_rewrites(
        PASS,
        f"main ({dtype}[N] x) => ({dtype}[N] y) <{dtype} hi = {{6}}> {{ t = Relu (x) y = Clip (t, , hi) }}",
        ops={"Relu": 0, "Clip": 1},
        numbers=False,
    )


@pytest.mark.parametrize(
    ("attributes", "after"),
    [
        ("<min = -1.0, max = 6.0>", "<min = 0.0, max = 6.0>"),
        ("<min = 1.0>", "<min = 1.0>"),
        ("<max = 6.0>", "<min = 0.0, max = 6.0>"),
        ("", "<min = 0.0>"),
    ],
)
def test_attributes_of_old_opsets(attributes: str, after: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[N] x) => (float[N] y) {{ t = Relu (x) y = Clip {attributes} (t) }}",
        after=f"y = Clip {after} (x)",
        opset=8,
    )


HEAD = "(float[N] x) => (float[N] y)"
KEPT = [
    ("max is below 0", f"{HEAD} <float hi = {{-1.0}}> {{ t = Relu (x) y = Clip (t, , hi) }}"),
    ("min is above max", f"{HEAD} <float lo = {{5.0}}, float hi = {{2.0}}> {{ t = Relu (x) y = Clip (t, lo, hi) }}"),
    ("it is not a constant", "(float[N] x, float lo) => (float[N] y) { t = Relu (x) y = Clip (t, lo) }"),
    ("it is not a constant", "(float[N] x, float hi) => (float[N] y) { t = Relu (x) y = Clip (t, , hi) }"),
    ("it is not a constant", "(float[N] x, float hi = {6.0}) => (float[N] y) { t = Relu (x) y = Clip (t, , hi) }"),
    ("used elsewhere", "(float[N] x) => (float[N] y, float[N] t) { t = Relu (x) y = Clip (t) }"),
    ("no Relu comes before", f"{HEAD} {{ t = Neg (x) y = Clip (t) }}"),
]


test_keeps = keeps(PASS, KEPT)


@pytest.mark.parametrize("operands", ["nan", "nan, six", ", nan"])
def test_keeps_a_bound_that_is_no_number(operands: str) -> None:
    model = parse(f"""main {HEAD} <float nan = {{1.0}}, float six = {{6.0}}> {{
        t = Relu (x) y = Clip (t, {operands}) }}""")
    model.graph.initializers["nan"].const_value = ir.tensor(np.array(np.nan, np.float32))
    changed, _ = run(PASS, model)
    assert not changed


def test_a_negative_zero_as_min_gives_the_zero_of_the_relu() -> None:
    model = check_rewrites(
        "relu_clip_fusion", "main (float[N] x) => (float[N] y) <float l = {-0.0}> { r = Relu (x) y = Clip (r, l) }"
    )
    (clip,) = model.graph
    assert clip.inputs[1] is not None
    assert clip.inputs[1].const_value is not None
    assert not np.signbit(clip.inputs[1].const_value.numpy())
