"""Guards of probabilities against NaNs go where there are none, or where a mask knows the rows."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

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


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing(sizes: tuple[int, int, int]) -> None:
    batch, queries, keys = sizes
    given = {"q": np.zeros((batch, 2, queries, keys), np.uint8), "c": np.zeros((batch, 1, 1, keys), np.bool_)}
    check_rewrites(PASS, model(), ops={"IsNaN": 0, "Mul": 1}, inputs=given)


def test_a_mask_that_is_moved_and_scores_too() -> None:
    mask = "w = Where (c, o, low) d = Constant <value_ints = [1]> () v = Squeeze (w, d) m = Unsqueeze (v, d)"
    scores = "xx = DequantizeLinear (q, s, z) x = Transpose <perm = [0, 1, 2, 3]> (xx)"
    check_rewrites(PASS, model(mask=mask, scores=scores), ops={"IsNaN": 0, "Mul": 1})


def test_a_finite_mask_has_its_rows() -> None:
    """A mask of finite numbers alone leaves every row something; its keep is 1."""
    check_rewrites(PASS, model(constants=CONSTANTS.replace("-inf", "-3.4028234663852886e38")), ops={"IsNaN": 0})


def test_no_mask() -> None:
    text = model("p = Softmax (x)", mask="", head=HEAD.replace(", bool[B,1,1,T] c", ""))
    text = text.replace(", float low = {-inf}", "")
    check_rewrites(PASS, text, "x = DequantizeLinear (q, s, z) y = Softmax (x)")


def test_what_is_dequantized() -> None:
    text = model("", scores="p = DequantizeLinear (q, s, z)", mask="", head=HEAD.replace(", bool[B,1,1,T] c", ""))
    text = text.replace(", float low = {-inf}", "").replace("y = Where (n, o, p)", "g = Where (n, o, p) y = Neg (g)")
    check_rewrites(PASS, text, "p = DequantizeLinear (q, s, z) y = Neg (p)")


FLOATS = HEAD.replace("uint8[B,2,S,T] q", "float[B,2,S,T] x")
UNQUANTIZED = CONSTANTS.replace("float s = {0.1}, uint8 z = {100}, ", "")
KEPT = {
    "the scores may be infinite or NaN": model(scores="", head=FLOATS, constants=UNQUANTIZED),
    "the guard tests another value": model(guard="n = IsNaN (x) y = Where (n, o, p)"),
    "no 0": model(constants=CONSTANTS + ", float h = {0.5}", guard="n = IsNaN (p) y = Where (n, h, p)"),
    "the probabilities are used elsewhere": model(guard="n = IsNaN (p) w = Where (n, o, p) y = Add (w, p)"),
    "the scores are used elsewhere": model(guard="n = IsNaN (p) w = Where (n, o, p) y = Add (w, a)"),
    "the Softmax is over other axes": model(SOFTMAX.replace("Softmax", "Softmax <axis = 1>")),
    "no mask of finite numbers and -inf is added": model(
        mask=MASK.replace("low", "high"),
        constants=CONSTANTS.replace("low = {-", "high = {"),
    ),
    "the guard raises the rank": model(
        head=HEAD.replace("(float[B,2,S,T] y)", "(float[1,B,2,S,T] y)"),
        constants=CONSTANTS + ", float[1,1,1,1,1] v = {0}",
        guard="n = IsNaN (p) y = Where (n, v, p)",
    ),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_scales_that_overflow() -> None:
    check_keeps(PASS, model(constants=CONSTANTS.replace("0.1", "1e38")), "the scores may be infinite or NaN")
    check_keeps(PASS, model(constants=CONSTANTS.replace("0.1", "nan")), "the scores may be infinite or NaN")
