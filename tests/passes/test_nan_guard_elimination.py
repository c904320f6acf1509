"""Guards of probabilities against NaNs go where there are none, or where a mask knows the rows."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "nan_guard_elimination"
HEAD = "main (uint8[B,2,S,T] q, bool[B,1,1,T] c) => (float[B,2,S,T] y)"
CONSTANTS = "float s = {0.1}, uint8 z = {100}, float o = {0}, float low = {-inf}"
SCORES = "x = DequantizeLinear (q, s, z)"
MASK = "m = Where (c, o, low)"
SOFTMAX = "a = Add (x, m) p = Softmax (a)"
GUARD = "n = IsNaN (p) y = Where (n, o, p)"
AFTER = """x = DequantizeLinear (q, s, z) m = Where (c, o, low) t = ReduceMax <axes = [-1]> (m) e = Equal (t, low)
    f = Where (e, o, m) a = Add (x, f) p = Softmax <axis = -1> (a) one = Constant <value_float = 1.0> ()
    k = Where (e, o, one) y = Mul (p, k)"""


def model(
    softmax: str = SOFTMAX,
    *,
    scores: str = SCORES,
    mask: str = MASK,
    guard: str = GUARD,
    head: str = HEAD,
    constants: str = CONSTANTS,
) -> str:
    return f"{head} <{constants}> {{ {scores} {mask} {softmax} {guard} }}"


def masks(*shape: int) -> np.ndarray:
    """Every third row keeps nothing, the others something."""
    keep = np.arange(np.prod(shape)).reshape(shape) % 3 == 0
    keep.reshape(-1, shape[-1])[::3] = False
    return keep


@pytest.mark.parametrize("softmax", [SOFTMAX, SOFTMAX.replace("x, m", "m, x")])
def test_rows_without_a_key(softmax: str) -> None:
    given = {"q": np.arange(60, dtype=np.uint8).reshape(2, 2, 3, 5), "c": masks(2, 1, 1, 5)}
    assert not given["c"][0].any()
    assert given["c"][1].any()
    after = AFTER if softmax == SOFTMAX else AFTER.replace("(x, f)", "(f, x)")
    check_rewrites(PASS, model(softmax), after, inputs=given)


@pytest.mark.parametrize("opset", [17, 18])
def test_a_mask_for_each_query(opset: int) -> None:
    head = HEAD.replace("bool[B,1,1,T]", "bool[S,T]")
    given = {"q": np.full((2, 2, 4, 3), 255, np.uint8), "c": masks(4, 3)}
    check_rewrites(PASS, model(head=head), ops={"IsNaN": 0, "Mul": 1}, inputs=given, opset=opset)
