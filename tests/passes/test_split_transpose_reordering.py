"""Queries, keys and values are split where their axes need fewer moves."""

from __future__ import annotations

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import parse

CONSTANTS = "int64[1] zero = {0}, int64[2] ones = {1, 1}"


def parts(perm: str = "2, 0, 3, 4, 1", squeeze: str = "zero", more: str = "", axis: int = 0) -> str:
    """Two parts of the third of five axes."""
    return f"""main (float[B,5,2,3,4] x) => (float[] y, float[] z{more and ", float[] t2"}) <{CONSTANTS}> {{
        t = Transpose <perm = [{perm}]> (x) p, q = Split <axis = {axis}> (t, ones)
        y = Squeeze (p, {squeeze}) z = Squeeze (q, {squeeze}) {more} }}"""


def test_a_second_run_changes_nothing() -> None:
    result = optimize(parse(parts()), level=3, verify=False)
    assert figures(result.model).ops == {"Split": 1, "Squeeze": 2, "Transpose": 1}
    assert figures(optimize(result.model, level=3, verify=False).model).ops == figures(result.model).ops
