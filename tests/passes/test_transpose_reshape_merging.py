"""Transposes with a Reshape between them are one Transpose between views."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "transpose_reshape_merging"


def model(
    x: str = "2,36,3,8",
    shape: str = "6,4,9,8",
    y: str = "4,6,9,8",
    first: str = "0, 2, 1, 3",
    second: str = "1, 0, 2, 3",
    kind: str = "float",
) -> str:
    count = shape.count(",") + 1
    return f"""main ({kind}[{x}] x) => ({kind}[{y}] y) <int64[{count}] s = {{{shape}}}> {{
        t = Transpose <perm = [{first}]> (x) r = Reshape (t, s) y = Transpose <perm = [{second}]> (r) }}"""


SHAPES = {
    "joined only": model("2,5,3,8", "6,5,8", "5,6,8", second="1, 0, 2"),
    "split only": model("2,36,3,8", "2,3,4,9,8", "4,2,9,3,8", second="2, 0, 3, 1, 4"),
    "joined and split elsewhere": model("6,4,5,8", "30,2,2,8", "2,30,2,8", second="1, 0, 2, 3"),
    "cut twice": model("2,36,3,8", "6,2,2,9,8", "9,6,2,2,8", second="3, 0, 1, 2, 4"),
    "the last is split": model("2,5,3,32", "6,5,4,8", "4,6,5,8", second="2, 0, 1, 3"),
    "axes of size 1": model("1,36,3,8", "3,4,9,8", "4,3,9,8"),
    "more axes of size 1": model("2,36,3,8", "6,1,4,9,8", "4,6,1,9,8", second="2, 0, 1, 3, 4"),
    "any batch": model("N,36,3,8", "-1,4,9,8", "4,K,9,8"),
    "any batch apart": model("N,36,3,8", "0,3,4,9,8", "4,N,3,9,8", second="2, 0, 1, 3, 4"),
    "back where it was": model("2,36,3,8", "2,3,4,9,8", "2,4,9,3,8", second="0, 2, 3, 1, 4"),
}


FEWER = {"joined only": 1, "split only": 1, "axes of size 1": 1, "any batch apart": 1, "back where it was": 1}
"""Reshapes that are left, where one view is enough."""


def done(name: str) -> dict[str, int]:
    return {"Transpose": int(name != "back where it was"), "Reshape": FEWER.get(name, 2)}


@pytest.mark.parametrize("name", ["any batch", "any batch apart"])
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_batches(name: str, batch: int) -> None:
    x = np.random.default_rng(0).standard_normal((batch, 36, 3, 8)).astype(np.float32)
    check_rewrites(PASS, SHAPES[name], ops=done(name), inputs={"x": x})


KEPT = {
    "no Transpose comes before": model().replace("t = Transpose <perm = [0, 2, 1, 3]> (x)", "t = Relu (x)"),
    "no Flatten or Reshape or Squeeze or Unsqueeze comes before": model(shape="0,0,0,0", y="3,2,36,8").replace(
        "Reshape (t, s)", "Relu (t)"
    ),
    "used elsewhere": model().replace("y)", "y, float[2,3,36,8] t)", 1),
    "used elsewhere ": model().replace("y)", "y, float[6,4,9,8] r)", 1),
    "used elsewhere  ": model().replace("y)", "y, float[6,4,9,8] z)", 1).replace("(r) }", "(r) z = Relu (r) }"),
    "the axes come apart into others": model("2,6,3,8", "9,4,8", "4,9,8", second="1, 0, 2"),
    "the axes come apart into others ": model("N,M,3,8", "-1,9,8", "9,K,8", second="1, 0, 2"),
    "there would be more axes": model("2,64,3,8", "6,2,2,2,8,8", "8,2,2,6,2,8", second="4, 3, 2, 0, 1, 5"),
    "but with columns 8 or more": model("2,36,3,4", "6,4,9,4", "4,6,9,4"),
    "but with columns 8 or more ": model(y="8,6,4,9", second="3, 0, 1, 2"),
    "but with columns 8 or more  ": model("2,36,3,D", "6,4,9,-1", "4,6,9,D"),
    "the sizes would be computed": model("N,36,M,8", "0,0,4,9,8", "4,N,M,9,8", second="2, 0, 1, 3, 4"),
    "elements are taken beyond an axis": model("0,36,3,8", "0,3,4,9,8", "4,0,3,9,8", second="2, 0, 1, 3, 4"),
}


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(PASS, KEPT[because], because.strip())
