"""Rows of all experts are found and gathered once, and results come back to them once."""

from __future__ import annotations

import re

import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import check_rewrites, parse

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


def test_a_whole_run() -> None:
    """Beside all other passes, twice."""
    result = optimize(parse(layer(), 18), level=3)
    assert result.verified
    assert figures(result.model).ops["NonZero"] == 1
    again = optimize(result.model, level=3)
    assert figures(again.model).ops == figures(result.model).ops
