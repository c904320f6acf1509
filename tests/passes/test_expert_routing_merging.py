"""Rows of all experts are found and gathered once, and results come back to them once."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import check_rewrites, parse
from tests.passes.tables import keeps

PASS = "expert_routing_merging"
HEAD = "main (float[N,4] x, float[N,3] s) => (float[N,4] y)"
CONSTANTS = {
    "two": "int64[1] two = {2}",
    "three": "int64 three = {3}",
    "bits": "int64[2] bits = {0, 1}",
    "ones": "int64[2] ones = {1, 1}",
    "last": "int64[1] last = {1}",
    "at": "int64[1] at = {0}",
    "e0": "int64 e0 = {0}",
    "e1": "int64 e1 = {1}",
    "e2": "int64 e2 = {-1}",
    "flat": "int64[2] flat = {-1, 1}",
    "four": "int64[1] four = {4}",
    "matrix": "int64[2] matrix = {-1, 4}",
    "one_more": "int64[3] one_more = {1, -1, 4}",
    "w": "float[4,4] w = {1, -2, 3, 0.5, -1, 4, 0.25, 2, 0.5, 1, 2, 3, -1, -2, 1, 0.5}",
}
ROUTE = "v, i = TopK (s, two) h = OneHot (i, three, bits) m = Transpose <perm = [2, 1, 0]> (h)"
ZEROS = "n = Shape <end = 1> (x) zs = Concat <axis = 0> (n, four) z = ConstantOfShape <value = float[1] {0}> (zs)"
EXPERT = "a{e} = MatMul (x{e}, w) b{e} = Tanh (a{e})"
FIND = """p{e} = Gather (m, e{e}) c{e} = Cast <to = 9> (p{e}) f{e} = NonZero (c{e})
    t{e} = Transpose <perm = [1, 0]> (f{e}) k{e}, r{e} = Split <axis = 1> (t{e}, ones) kk{e} = Squeeze (k{e}, last)
    rr{e} = Squeeze (r{e}, last) x{e} = Gather (x, rr{e})"""
WEIGH = "rk{e} = Mul (rr{e}, two) q{e} = Add (rk{e}, kk{e}) g{e} = Gather (u, q{e}) u{e} = Mul (b{e}, g{e})"
SCATTER = """us{e} = Shape (u{e}) ri{e} = Expand (r{e}, us{e}) o{e} = ScatterElements <axis = 0> (z, ri{e}, u{e})"""
SUM = "y0 = Add (z, o0) y1 = Add (y0, o1) y = Add (y1, o2)"
ROUTED = {"NonZero": 1, "ScatterND": 1, "ScatterElements": 0, "Split": 2, "Gather": 2, "Concat": 1, "Expand": 0}


def layer(
    *,
    route: str = ROUTE,
    find: str = FIND,
    weigh: str = WEIGH,
    zeros: str = ZEROS,
    scatter: str = SCATTER,
    total: str = SUM,
    head: str = HEAD,
    more: str = "",
) -> str:
    """Three experts, of which each row takes two."""
    body = [find, EXPERT, weigh, scatter]
    experts = [
        " ".join(text.format(e=e) for text in body).replace("Tanh", "Tanh" if e else "Sigmoid") for e in range(3)
    ]
    weights = "u = Reshape (v, flat)" if "u," in weigh else ""
    nodes = f"{route} {weights} {zeros} {' '.join(experts)} {total} {more}"
    used = ", ".join(text for name, text in CONSTANTS.items() if re.search(rf"\b{name}\b", nodes))
    return f"{head} <{used}> {{ {nodes} }}"


def test_merges() -> None:
    check_rewrites(PASS, layer(), ops=ROUTED)


def test_rows_before_slots() -> None:
    """The rows may be the first coordinate, and the OneHot may write the experts first."""
    turned = FIND.replace("k{e}, r{e} = Split", "r{e}, k{e} = Split")
    check_rewrites(PASS, layer(route=ROUTE.replace("[2, 1, 0]", "[2, 0, 1]"), find=turned), ops=ROUTED)
    first = "v, i = TopK (s, two) m = OneHot <axis = 0> (i, three, bits)"
    check_rewrites(PASS, layer(route=first, find=turned), ops=ROUTED)


def test_experts_are_the_last_axis() -> None:
    """Where nothing turns what the OneHot writes, each expert takes its part of the last axis."""
    find = FIND.replace("Gather (m,", "Gather <axis = 2> (m,").replace("k{e}, r{e} = Split", "r{e}, k{e} = Split")
    text = layer(route="v, i = TopK (s, two) m = OneHot (i, three, bits)", find=find)
    check_rewrites(PASS, text, ops=ROUTED)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_any_number_of_rows(rows: int) -> None:
    """Nobody's rows, one expert without rows, and rows for all."""
    x = np.linspace(-2, 2, rows * 4, dtype=np.float32).reshape(rows, 4)
    scores = np.tile(np.array([3, 1, 2], np.float32), (rows, 1))
    check_rewrites(PASS, layer(), ops=ROUTED, inputs={"x": x, "s": scores})


def test_results_as_they_are() -> None:
    """Without weights."""
    find = FIND.replace("kk{e} = Squeeze (k{e}, last)", "")
    text = layer(find=find, weigh="u{e} = Mul (b{e}, b{e})")
    check_rewrites(PASS, text, ops=ROUTED | {"Gather": 1, "Mul": 4})


def test_exporters_forms() -> None:
    """Rows are gathered of a tensor with one more axis; results are expanded to as many rows as there are, or none."""
    rows = FIND.replace(
        "x{e} = Gather (x, rr{e})", "xx{e} = Gather <axis = 1> (x3, rr{e}) x{e} = Reshape (xx{e}, matrix)"
    )
    scatter = SCATTER.replace("u{e})", "w{e})").replace("us{e} = Shape", "w{e} = Expand (u{e}, zr) us{e} = Shape")
    route = f"{ROUTE} x3 = Reshape (x, one_more)"
    zeros = f"{ZEROS} zz = Slice (z, at, last, at) zr = Shape (zz)"
    text = layer(route=route, find=rows, scatter=scatter, zeros=zeros)
    check_rewrites(PASS, text, ops=ROUTED | {"Expand": 0})


def test_searches_alone() -> None:
    """Where experts of a row may be the same, results come back as before; what reads the coordinates gets parts."""
    head = "main (float[N,4] x, float[N,2] v, int64[N,2] i) => (float[N,4] y)"
    route = "h = OneHot (i, three, bits) m = Transpose <perm = [2, 1, 0]> (h)"
    text = layer(route=route, head=head)
    names = np.array([[0, 2], [2, 1], [1, 0]])
    given = {"x": np.ones((3, 4), np.float32), "v": np.ones((3, 2), np.float32), "i": names}
    check_rewrites(PASS, text, ops={"NonZero": 1, "ScatterElements": 3, "ScatterND": 0}, inputs=given)


def test_marks_of_any_size() -> None:
    """What is not 0 counts once."""
    head = "main (float[N,4] x, float[N,2] v, int32[3,2,N] m) => (float[N,4] y)"
    marks = np.zeros((3, 2, 2), np.int32)
    marks[0, 0, 0], marks[1, 0, 1], marks[2, 1, 0], marks[0, 1, 1] = 7, -3, 1, 256
    given = {"x": np.ones((2, 4), np.float32), "v": np.ones((2, 2), np.float32), "m": marks}
    check_rewrites(PASS, layer(route="", head=head), ops={"NonZero": 1, "Cast": 2}, inputs=given)


def test_booleans() -> None:
    find = FIND.replace("c{e} = Cast <to = 9> (p{e})", "").replace("NonZero (c{e})", "NonZero (p{e})")
    route = ROUTE.replace(
        "m = Transpose <perm = [2, 1, 0]> (h)", "hb = Cast <to = 9> (h) m = Transpose <perm=[2,1,0]> (hb)"
    )
    check_rewrites(PASS, layer(route=route, find=find), ops={"NonZero": 1, "ScatterElements": 3, "Cast": 2})


def test_no_one_mask() -> None:
    """Parts that are read alike, but by another op for one of them, are split before that."""
    find = FIND.replace("x{e} = Gather (x, rr{e})", "x{e} = Gather (x{e}of, rr{e})")
    text = layer(find=find, route=f"{ROUTE} x0of = Neg (x) x1of = Abs (x) x2of = Exp (x)")
    check_rewrites(PASS, text, ops={"NonZero": 1, "Gather": 4, "ScatterND": 1})


COMBINED_ELSEWHERE = {
    "no zeros": layer(total="y0 = Add (x, o0) y1 = Add (y0, o1) y = Add (y1, o2)"),
    "an expert twice": layer(total="y0 = Add (o1, o0) y1 = Add (y0, o1) y = Add (y1, o2)"),
    "another sum": layer(total="y0 = Mul (z, o0) y1 = Add (y0, o1) y = Add (y1, o2)"),
    "a sum of rows": layer(scatter=SCATTER.replace("axis = 0", 'axis = 0, reduction = "add"')),
    "zeros to be": layer().replace("value = float[1] {0}", "value = float[1] {1}"),
    "columns": layer(scatter=SCATTER.replace("axis = 0", "axis = 1"), head=HEAD.replace("N", "4")),
    "slots": layer(scatter=SCATTER.replace("Expand (r{e}", "Expand (k{e}")),
    "marks": layer().replace("bits = {0, 1}", "bits = {0, 5}"),
}


@pytest.mark.parametrize("why", COMBINED_ELSEWHERE)
def test_other_combinations_stay(why: str) -> None:
    result = check_rewrites(PASS, COMBINED_ELSEWHERE[why], ops={"NonZero": 1, "ScatterND": 0}, opset=18)
    assert figures(result).ops["ScatterElements"] == 3


KEPT = {
    "the mask is of floats": layer()
    .replace("bits = {0, 1}", "bits = {0, 1}")
    .replace("h = OneHot (i, three, bits)", "hi = OneHot (i, three, bits) h = Cast <to = 1> (hi)"),
    "not each part of the mask is searched once": layer().replace("Gather (m, e2)", "Gather (m, e1)"),
    "it takes no part of the axis of the experts": layer(head=HEAD.replace("N", "3")).replace(
        "Gather (m, e2)", "Gather <axis = 2> (m, e2)"
    ),
    "it searches no part of a mask": "main (bool[3] m) => (int64[1,K] y) { y = NonZero (m) }",
    "the Cast makes no booleans": layer(find=FIND.replace("to = 9", "to = 3")),
}


test_keeps = keeps(PASS, KEPT)


def test_a_subgraph_reads_a_part() -> None:
    head = HEAD.replace("s)", "s, bool b)")
    branch = "g () => (int64[2,K] q) {{ q = {} (f1) }}"
    more = f"yy = If (b) <then_branch = {branch.format('Identity')}, else_branch = {branch.format('Neg')}>"
    text = layer(head=head, more=more).replace("=> (float[N,4] y)", "=> (float[N,4] y, int64[2,K] yy)")
    check_rewrites(PASS, text, ops={"NonZero": 1, "Split": 3})


def test_a_whole_run() -> None:
    """Beside all other passes, twice."""
    result = optimize(parse(layer(), 18), level=3)
    assert result.verified
    assert figures(result.model).ops["NonZero"] == 1
    again = optimize(result.model, level=3)
    assert figures(again.model).ops == figures(result.model).ops
