"""A TopK may choose otherwise among numbers that are equal but for rounding, and nothing else may differ."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import parse
from ortopt.verification.verify import verify

CHOOSING = """main (float[N,4] x) => ({outputs})
    <int64[1] k = {{2}}, float[4] d = {{{d}}}, float[4] t = {{1, 20, 300, 4000}}, float[1] f = {{{factor}}}> {{
    s = Add (x, d) best, place = TopK <axis = {axis}, largest = {largest}> (s, k)
    g = Gather (t, place) v = Mul (best, f) y = Add (g, v) {more} }}"""
TIES = {"x": np.array([[1, 1, 0.5, 1], [0.25, 2, 2, 0.25]], np.float32)}


def choosing(
    d: str = "0, 0, 0, 0", *, factor: str = "1", axis: int = -1, largest: int = 1, more: str = "", also: str = ""
) -> str:
    outputs = f"float[N,2] y{also}"
    return CHOOSING.format(d=d, factor=factor, axis=axis, largest=largest, more=more, outputs=outputs)


def status(original: str, result: str) -> str:
    return verify(parse(original), parse(result), inputs=TIES, in_process=True).status


def test_a_tie_but_for_rounding() -> None:
    outcome = verify(parse(choosing()), parse(choosing("0, 1e-7, 1e-7, 0")), inputs=TIES, in_process=True)
    assert outcome.status == "verified"
    assert outcome.worst < 1e-6  # what else there is
    assert [row.detail for row in outcome.outputs] == ["a TopK chose otherwise among nearly equal numbers"]


@pytest.mark.parametrize(
    "result",
    [
        choosing("0, 0.01, 0.01, 0"),
        choosing("0, 1e-7, 1e-7, 0", factor="1.01"),
        choosing("0, 1e-7, 1e-7, 0", largest=0),
        choosing("0, 1e-7, 1e-7, 0").replace("y = Add (g, v)", "z = Mul (g, f) u = Add (z, f) y = Add (u, v)"),
        choosing("0, 1e-7, 1e-7, 0").replace("place", "elsewhere"),
    ],
    ids=["what is best", "what is made of the best", "another choice", "what is made of the places", "another name"],
)
def test_anything_else_differs(result: str) -> None:
    assert status(choosing(), result) == "differs"


def test_the_same_numbers_at_other_places_differ() -> None:
    """What is best agrees, and what the places are used for: not what is found at them."""
    original = choosing().replace("y = Add (g, v)", "y = Identity (g)")
    turned = "r = Add (x, d) back = Constant <value_ints = [3, 2, 1, 0]> () s = Gather <axis = 1> (r, back)"
    assert status(original, original.replace("s = Add (x, d)", turned)) == "differs"


def test_places_that_are_outputs_are_compared() -> None:
    also = ", int64[N,2] place"
    assert status(choosing(also=also), choosing("0, 1e-7, 1e-7, 0", also=also)) == "differs"


@pytest.mark.parametrize("change", ["<axis = -1, largest = 1>", "<axis = 1, largest = 1, sorted = 1>"])
def test_attributes_by_default(change: str) -> None:
    right, other = choosing(), choosing("0, 1e-7, 1e-7, 0")
    assert status(right, other.replace("<axis = -1, largest = 1>", change)) == "verified"


def test_best_numbers_in_no_order_are_not_compared() -> None:
    texts = (text.replace("largest = 1", "largest = 1, sorted = 0") for text in (choosing(), choosing("0, 1e-7, 0, 0")))
    assert status(*texts) == "differs"
