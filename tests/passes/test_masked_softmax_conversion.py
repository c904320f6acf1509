"""Masked scores are held at 81 below their largest, so that no exponential is denormal."""

import numpy as np
import pytest

from ortopt.options import Fusions, Options
from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "masked_softmax_conversion"
HEAD = "main (float[B,4,4] x, float[B,4,2] v) => (float[B,4,2] y)"
MASK = "float[4,4] m = {0, 0, -100, -100, 0, 0, 0, -100, 0, 0, 0, 0, -100, 0, 0, 0}"


def text(softmax: str = "p = Softmax (t)", *, head: str = HEAD, mask: str = MASK) -> str:
    return f"{head} <{mask}> {{ t = Add (x, m) {softmax} y = MatMul (p, v) }}"


def held(reduction: str, attributes: str = "<axis = 2>") -> str:
    least = "a = Abs (l) b = Mul (a, f) d = Max (b, k) s = Sub (l, d)"
    return f"l = {reduction} {least} h = Max (t, s) p = Softmax {attributes} (h)"


def test_scores_are_held() -> None:
    constants = MASK + ", float k = {81}, float f = {0.0000152587890625}, int64[1] i = {2}"
    check_rewrites(PASS, text(), text(held("ReduceMax (t, i)"), mask=constants), opset=18)


def test_axes_as_an_attribute() -> None:
    constants = MASK + ", float k = {81}, float f = {0.0000152587890625}"
    check_rewrites(PASS, text(), text(held("ReduceMax <axes = [2]> (t)"), mask=constants), opset=17)


def test_a_mask_that_is_computed() -> None:
    model = f"""{HEAD.replace("x,", "x, bool[B,1,4] c,")} <float z = {{0}}, float n = {{-1e9}}> {{
        m = Where (c, z, n) t = Add (m, x) p = Softmax <axis = -1> (t) y = MatMul (p, v) }}"""
    check_rewrites(PASS, model, ops={"ReduceMax": 1, "Max": 2})


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, -3e38, -200.0])
def test_rows_that_hold_anything(number: float) -> None:
    """Wholly, in one place, and everywhere but in one place."""
    x = np.zeros((3, 4, 4), np.float32)
    x[0, 0], x[1, :, 2], x[2, :, 1:] = number, number, number
    check_rewrites(PASS, text(), ops={"Max": 2}, inputs={"x": x, "v": np.ones((3, 4, 2), np.float32)})


@pytest.mark.parametrize("number", [1e30, -1e10, -1.5e38, 3e9, 1e6])
def test_scores_so_large_that_they_swallow_the_distance(number: float) -> None:
    """Two masks add up where both mask: in a row that is masked as a whole, some are below the others."""
    x = np.full((3, 4, 4), number, np.float32)
    x[0, 0, 1], x[1, :, 2], x[2, :, 1:] = number - abs(number) / 4, number - abs(number), 0
    v = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    check_rewrites(PASS, text(), ops={"Max": 2}, inputs={"x": x, "v": v})


INFINITE = MASK.replace("-100", "-inf")
KEPT = {
    "a shallow mask": ("no mask that goes deep", text(mask=INFINITE.replace("-inf", "-10"))),
    "an infinite mask": ("holds -inf", text(mask=INFINITE)),
    "a mask from outside": (
        "no mask that goes deep",
        HEAD.replace("x,", "x, float[4,4] m,") + "{ t = Add (x, m) p = Softmax (t) y = MatMul (p, v) }",
    ),
    "no mask": ("no Add or Sum", f"{HEAD} {{ p = Softmax (x) y = MatMul (p, v) }}"),
    "probabilities that are compared": (
        "may decide something",
        text("p = Softmax (t) o = Greater (p, x)", head=HEAD.replace("y)", "y, bool[B,4,4] o)")),
    ),
    "probabilities as a result": (
        "are a result",
        text(head=HEAD.replace("y)", "y, float[B,4,4] p)")),
    ),
    "doubles": ("single precision only", text().replace("float", "double")),
    "by default": ("Softmax of held scores", text(), {"options": Options()}),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_an_exact_zero_is_given_up_on_request() -> None:
    options = Options(fusions=Fusions.ALL, bounded_error=True)
    check_rewrites(PASS, text(mask=INFINITE), ops={"Max": 2}, options=options)
