"""How large a mask's elements are, by the ops that exporters build masks of."""

import math

import pytest

from ortopt.patterns.attention import mask
from ortopt.testing import parse

CONSTANTS = {
    "low": "float[1] low = {-3.0e38}", "ten": "float[1] ten = {10}", "one": "int64 one = {1}",
    "at": "int64[1,2] at = {0, 0}",
}  # fmt: skip
BOUNDS = {
    "m = ConstantOfShape (size)": 0.0,
    "m = ConstantOfShape <value = float[1] {-5}> (size)": 5.0,
    "f = ConstantOfShape <value = float[1] {-5}> (size) m = Trilu (f, one)": 5.0,
    "f = ConstantOfShape (size) m = ScatterND (f, at, low)": 3.0e38,
    "f = ConstantOfShape <value = float[1] {20}> (size) m = ScatterND (f, at, ten)": 20.0,
    'f = ConstantOfShape (size) m = ScatterND <reduction = "add"> (f, at, ten)': None,
    "f = ConstantOfShape (size) m = ScatterND (f, at, x)": None,
    "m = Trilu (x, one)": None,
}


@pytest.mark.parametrize("nodes", BOUNDS)
def test_bounds(nodes: str) -> None:
    used = ", ".join(text for name, text in CONSTANTS.items() if f", {name}" in nodes)
    model = parse(f"main (int64[2] size, float[2,2] x) => (float[S,T] m) <{used}> {{ {nodes} }}", 18)
    (result,) = model.graph.outputs
    known = mask.bound(result)
    wanted = BOUNDS[nodes]
    assert known == wanted or (known is not None and wanted is not None and math.isclose(known, wanted, rel_tol=1e-6))
