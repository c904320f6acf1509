"""Rows of one op: a diamond is walked once, not along all of its paths, and a long chain has an end."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from fuzzing import chains
from ortopt import optimize

OPS = dict(chains.ops())
SOME = ("Add", "And", "Einsum", "Gemm", "MatMul", "Max", "Mul", "Or", "Sub", "Where")
LINEAR = 3.0
"""Twice as many nodes take twice as many calls; along all paths it would be a hundred times as many."""


def calls(op: str, form: str, length: int) -> int:
    source = chains.row(op, OPS[op], form, length).SerializeToString()
    counted = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    had = sys.getprofile()
    sys.setprofile(count)
    try:
        optimize(source, level=3, verify=False)
    finally:
        sys.setprofile(had)
    return counted


@pytest.mark.parametrize("op", SOME)
@pytest.mark.parametrize(("form", "length"), [("diamond", 9), ("ladder", 18)])
def test_each_value_is_walked_once(form: str, length: int, op: str) -> None:
    calls(op, form, 2)  # what is imported and read once
    assert calls(op, form, 2 * length) < LINEAR * calls(op, form, length)


@pytest.mark.parametrize(("op", "length"), [("And", 1_200), ("MatMul", 1_500), ("Einsum", 600)])
@pytest.mark.parametrize("form", chains.KINDS)
def test_long_rows_have_an_end(op: str, length: int, form: str) -> None:
    source = chains.row(op, OPS[op], form, length).SerializeToString()
    model = optimize(source, level=3, verify=False).model
    assert length // 2 <= len(model.graph) <= 3 * length + 1  # of a commutative op, pairs are one


def test_the_ops_are_those_that_can_stand_in_a_row() -> None:
    assert len(OPS) > 60
    assert OPS.keys() >= set(SOME)
    assert not OPS.keys() & {"Conv", "If", "Loop", "Range"}


def test_what_goes_wrong_is_told() -> None:
    assert chains.outcome("Relu", OPS["Relu"], "chain", 2, 300.0) == ""
    assert "not done" in chains.outcome("Relu", OPS["Relu"], "chain", 2, 0.01)
    assert "UsageError" in chains.outcome("Relu", OPS["Relu"], "chain", 2, 300.0, level=7)
