"""A result says how much of the allowed growth is left, so that a run on it does not start with a new allowance."""

import pytest

from ortopt import optimize
from ortopt.optimization.pipeline import GROWTH_KEY
from ortopt.options import MEGABYTE
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse

pytestmark = pytest.mark.usefixtures("models_run_here")

SIDE = 400
ONE = SIDE * SIDE * 4
"""Bytes of a folded constant: one is within a megabyte, two are not."""

TWO = f"""main (float[{SIDE},{SIDE}] x) => (float[{SIDE},{SIDE}] y, float[{SIDE},{SIDE}] z)
    <int64[2] s = {{{SIDE}, {SIDE}}}, float a = {{1}}, float b = {{2}}> {{
    f = Expand (a, s) g = Sin (f) y = Add (x, g) h = Expand (b, s) i = Cos (h) z = Mul (x, i) }}"""
FOLDING = {"only": ("constant_folding",), "verify": False}


def test_a_second_run_changes_nothing() -> None:
    first = optimize(parse(TWO), **FOLDING)
    assert first.summary.too_large
    label, left = first.model.metadata_props[GROWTH_KEY].split()
    assert label == "default"
    assert 0 <= int(left) < ONE
    again = optimize(first.model, **FOLDING)
    assert again.summary.too_large
    assert to_bytes(again.model) == to_bytes(first.model)


def test_another_allowance_starts_anew() -> None:
    first = optimize(parse(TWO), **FOLDING).model
    more = optimize(first, max_growth=2 * MEGABYTE, **FOLDING)
    assert not more.summary.too_large
    assert GROWTH_KEY not in more.model.metadata_props


def test_nothing_is_said_where_nothing_was_too_large() -> None:
    assert GROWTH_KEY not in optimize(parse(TWO), max_growth=2 * MEGABYTE, **FOLDING).model.metadata_props


@pytest.mark.parametrize("text", ["default 99999999999", "default -1", "default x", "default", "", "default 1e9", "9"])
def test_what_a_file_says_allows_no_more_than_there_is(text: str) -> None:
    model = parse(TWO)
    model.metadata_props[GROWTH_KEY] = text
    result = optimize(model, **FOLDING)
    assert result.summary.too_large
    assert len(result.model.graph.initializers) == len(optimize(parse(TWO), **FOLDING).model.graph.initializers)


def test_a_file_may_say_that_nothing_is_left() -> None:
    model = parse(TWO)
    model.metadata_props[GROWTH_KEY] = "default 0"
    result = optimize(model, **FOLDING)
    assert len(result.summary.too_large) == 1
    assert not result.summary.passes
    assert result.model.metadata_props[GROWTH_KEY] == "default 0"
