"""An axis that all parts of a value get is given to the value."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "split_unsqueeze_reordering"


def model(nodes: str, y: str = "float[N,1,2] u, float[N,1,4] v", more: str = "") -> str:
    return f"main (float[N,6] x) => ({y}) <int64[2] s = {{2, 4}}, int64[1] a = {{1}}{more}> {{ {nodes} }}"


PARTS = "p, q = Split <axis = 1> (x, s) u = Unsqueeze (p, a) v = Unsqueeze (q, a)"


@pytest.mark.parametrize("axis", ["axis = 1", "axis = -1"])
def test_reorders(axis: str) -> None:
    after = "w = Unsqueeze (x, a) u, v = Split <axis = 2> (w, s)"
    check_rewrites(PASS, model(PARTS.replace("axis = 1", axis)), model(after))


def test_other_axes() -> None:
    text = PARTS.replace("(q, a)", "(q, b)").replace("(p, a)", "(p, b)")
    after = "w = Unsqueeze (x, b) u, v = Split <axis = 3> (w, s)"
    y, more = "float[1,N,1,2] u, float[1,N,1,4] v", ", int64[2] b = {0, 2}"
    before = model(text, y, more).replace(", int64[1] a = {1}", "")
    check_rewrites(PASS, before, model(after, y, more).replace(", int64[1] a = {1}", ""))
    check_rewrites(PASS, before.replace("b = {0, 2}", "b = {-2, 0}"), ops={"Unsqueeze": 1})


def test_an_old_opset() -> None:
    text = """main (float[N,6] x) => (float[N,1,2] u, float[N,1,4] v) {
        p, q = Split <axis = 1, split = [2, 4]> (x) u = Unsqueeze <axes = [1]> (p) v = Unsqueeze <axes = [1]> (q) }"""
    check_rewrites(PASS, text, ops={"Unsqueeze": 1, "Split": 1}, opset=11)


def test_equal_parts() -> None:
    text = """main (float[N,6] x) => (float[N,1,3] u, float[N,1,3] v) <int64[1] a = {1}> {
        p, q = Split <axis = 1, num_outputs = 2> (x) u = Unsqueeze (p, a) v = Unsqueeze (q, a) }"""
    check_rewrites(PASS, text, ops={"Unsqueeze": 1, "Split": 1}, opset=18)


KEPT = {
    "a part is used elsewhere": model(PARTS, "float[N,1,2] u, float[N,1,4] v, float[N,2] p"),
    "or not at all": model(PARTS.replace("v = Unsqueeze (q, a)", ""), "float[N,1,2] u"),
    "a part is not unsqueezed": model(PARTS.replace("Unsqueeze (q, a)", "Relu (q)"), "float[N,1,2] u, float[N,4] v"),
    "different axes": model(PARTS.replace("(q, a)", "(q, b)"), "float[N,1,2] u, float[1,N,4] v", ", int64[1] b = {0}"),
}


test_keeps = keeps(PASS, KEPT)
