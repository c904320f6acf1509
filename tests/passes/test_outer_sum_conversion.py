"""The sum of a short column and a short row, for each query, is a product with ones."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt import testing
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse

PASS = "outer_sum_conversion"


def model(
    height: str = "4",
    width: str = "5",
    *,
    lead: str = "N,6",
    other: str = "",
    kind: str = "float",
    axes: str = "-1, -2",
    sum_: str = "y = Add (c, r)",
    result: str = "",
) -> str:
    """A column and a row out of products, and their sum."""
    other = other or lead
    column, row = axes.split(", ")
    result = result or f"{lead},{height},{width}"
    return f"""main ({kind}[{lead},3] x, {kind}[{other},3] z, {kind}[3,{height}] v, {kind}[3,{width}] w)
        => ({kind}[{result}] y) <int64[1] m = {{{column}}}, int64[1] n = {{{row}}}> {{
        a = MatMul (x, v) b = MatMul (z, w) c = Unsqueeze (a, m) r = Unsqueeze (b, n) {sum_} }}"""


def test_converts() -> None:
    text = "main (float[N,2] x, float[N,2] z, float[2,2] v, float[2,8] w) => (float[N,2,8] y)"
    ones = [[float(column // 8 == row) for column in range(16)] for row in range(2)]
    ones += [[float(column % 8 == row) for column in range(16)] for row in range(8)]
    numbers = ", ".join(str(number) for row in ones for number in row)
    check_rewrites(
        PASS,
        text
        + """<int64[1] m = {-1}, int64[1] n = {-2}> {
        a = MatMul (x, v) b = MatMul (z, w) c = Unsqueeze (a, m) r = Unsqueeze (b, n) y = Add (r, c) }""",
        text
        + f"""<float[10,16] e = {{{numbers}}}, int64[3] s = {{0, 2, 8}}> {{
        a = MatMul (x, v) b = MatMul (z, w) both = Concat <axis = 1> (a, b) t = MatMul (both, e)
        y = Reshape (t, s) }}""",
    )


DONE = {"Add": 0, "Unsqueeze": 0, "MatMul": 3, "Concat": 1, "Reshape": 1}


@pytest.mark.parametrize(("height", "width"), [("2", "8"), ("16", "2"), ("4", "4"), ("16", "16"), ("14", "14")])
@pytest.mark.parametrize("lead", ["6", "N", "N,M", "2,3,4"])
def test_other_sizes(height: str, width: str, lead: str) -> None:
    check_rewrites(PASS, model(height, width, lead=lead), ops=DONE)


@pytest.mark.parametrize("seed", range(3))
def test_finite_numbers_stay_to_the_bit(seed: int) -> None:
    """One summand is a number times one, and all others but one are zeros."""
    rng = np.random.default_rng(seed)
    numbers = {
        name: (rng.standard_normal(shape) * 10.0 ** rng.integers(-20, 18, shape)).astype(np.float32)
        for name, shape in {"x": (7, 6, 3), "z": (7, 6, 3), "v": (3, 14), "w": (3, 13)}.items()
    }
    results = []
    for after in (False, True):
        read = parse(model("14", "13"))
        if after:
            assert testing.run(PASS, read)[0]
        session = ort.InferenceSession(to_bytes(read), providers=["CPUExecutionProvider"])
        results.append(session.run(None, numbers)[0])
    np.testing.assert_array_equal(results[1], results[0])


MASK = """main (float[N,4] a, float[N,5] b) => (float[N,4,5] y) <int64[1] m = {-1}, int64[1] n = {-2}> {
    c = Unsqueeze (a, m) r = Unsqueeze (b, n) y = Add (c, r) }"""
FAR = """main (float[6,6] x, float[6,6] v) => (float[6,6,6] y) <int64[1] m = {-1}, int64[1] n = {-2}> {
    a = MatMul (x, v) t0 = Transpose (a) t1 = Transpose (t0) t2 = Transpose (t1) t3 = Transpose (t2)
    t4 = Transpose (t3) t5 = Transpose (t4) t6 = Transpose (t5) t7 = Transpose (t6)
    c = Unsqueeze (t7, m) r = Unsqueeze (a, n) y = Add (c, r) }"""
KEPT = {
    "no Unsqueeze comes before": model(sum_="d = Relu (c) y = Add (d, r)"),
    "no column and row": model(axes="-1, -1", width="4", result="N,6,4,1"),
    "no column and row ": model(axes="-2, -2", width="4", result="N,6,1,4"),
    "no column and row  ": model(axes="-1, -3", lead="6,4", result="6,6,4,5"),
    "more than one axis is new": model(axes="-1, -2", result="N,1,6,4,5").replace(
        "int64[1] m = {-1}", "int64[2] m = {1, -1}"
    ),
    "single precision only": model(kind="double"),
    "the axes before them differ": model(lead="2,6", other="1,6"),
    "the axes before them differ ": model(lead="N,6", other="M,6", result="K,6,4,5"),
    "the axes before them differ  ": model(lead="2,6", other="6", result="2,6,4,5"),
    "a size is not fixed": model("H"),
    "a size is not fixed ": model(width="W"),
    "but with side 2 to 16": model(width="17"),
    "but with side 2 to 16 ": model("17"),
    "one of them is a number": model("1", "16"),
    "one of them is a number ": model("16", "1"),
    "elements 16 or more": model("3", "5"),
    "come out of no product": MASK,
    "come out of no product ": model(sum_="y = Add (c, r)").replace(
        "b = MatMul (z, w)", "d = MatMul (z, w) b = Log (d)"
    ),
    "no product is near": FAR,
}


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(PASS, KEPT[because], because.strip())
