"""A reduction drops or keeps its axes by itself, where a Squeeze, an Unsqueeze or a Reshape does it behind."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "reduce_reshape_fusion"


def model(body: str, constants: str = "int64[1] axis = {1}", result: str = "N,1,4", dtype: str = "float") -> str:
    return f"""main (float[N,3,4] x) => ({dtype}[{result}] y) <{constants}> {{ {body} }}"""


KEEP = "r = ReduceMean <axes = [1], keepdims = 0> (x) u = Unsqueeze (r, axis) y = Neg (u)"
DROP = "r = ReduceMax <axes = [1]> (x) u = Squeeze (r, axis) y = Neg (u)"
REWRITTEN = {
    "Unsqueeze": (model(KEEP), "u = ReduceMean <axes = [1], keepdims = 1> (x) y = Neg (u)"),
    "Squeeze": (model(DROP, result="N,4"), "u = ReduceMax <axes = [1], keepdims = 0> (x) y = Neg (u)"),
    "Reshape": (
        model("r = ReduceL2 <axes = [-2], keepdims = 0> (x) u = Reshape (r, to) y = Neg (u)",
              "int64[3] to = {-1, 1, 4}"),
        "u = ReduceL2 <axes = [-2], keepdims = 1> (x) y = Neg (u)",
    ),
    "two axes": (
        model("r = ReduceMin <axes = [1, 2], keepdims = 0> (x) u = Unsqueeze (r, two) y = Neg (u)",
              "int64[2] two = {1, 2}", "N,1,1"),
        "u = ReduceMin <axes = [1, 2], keepdims = 1> (x) y = Neg (u)",
    ),
    "all axes": (
        model("r = ReduceMin <keepdims = 0> (x) u = Reshape (r, ones) y = Neg (u)",
              "int64[3] ones = {1, 1, 1}", "1,1,1"),
        "u = ReduceMin <keepdims = 1> (x) y = Neg (u)",
    ),
    "ArgMax": (
        model("r = ArgMax <axis = 1, keepdims = 0> (x) u = Unsqueeze (r, axis) y = Neg (u)", dtype="int64"),
        "u = ArgMax <axis = 1, keepdims = 1> (x) y = Neg (u)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewrites(case: str) -> None:
    text, after = REWRITTEN[case]
    check_rewrites(PASS, text, f"main (float[N,3,4] x) => {text[text.index('=>') + 2 : text.index('<')]} {{ {after} }}")


@pytest.mark.parametrize("opset", [13, 18])
def test_axes_that_are_an_input(opset: int) -> None:
    text = model("r = ReduceSum <keepdims = 0> (x, axis) u = Unsqueeze (r, axis) y = Neg (u)")
    check_rewrites(PASS, text, "u = ReduceSum <keepdims = 1> (x, axis) y = Neg (u)", opset=opset)


KEPT = {
    "comes before": model("r = Softmax (x) u = Unsqueeze (r, axis) y = Neg (u)", result="N,1,3,4"),
    "it gives another shape": model(KEEP, "int64[1] axis = {0}", "1,N,4"),
    "the axes are not known": """main (float[N,3,4] x, int64[1] axis) => (float[M,K,L] y) <int64[1] one = {1}> {
        r = ReduceSum <keepdims = 0> (x, axis) u = Unsqueeze (r, one) y = Neg (u) }""",
    "what a file declares": model(KEEP.replace("u = ", "y = ").replace(" y = Neg (u)", "")),
    "ReduceMean's result is used elsewhere": model(KEEP.replace("Neg (u)", "Add (u, r)")),
    "it reduces nothing": model(
        "r = ReduceSum <keepdims = 0, noop_with_empty_axes = 1> (x) u = Reshape (r, ones) y = Neg (u)",
        "int64[3] ones = {0, 3, 4}", "N,3,4",
    ),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)
