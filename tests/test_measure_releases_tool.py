"""What is written of a release: verdicts that are a matter of the release, and no other rows than its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ortopt.analysis.costs import Verdict
from ortopt.measurement.costs import Case
from ortopt.measurement.forms.catalog import ENTRIES
from ortopt.measurement.forms.entry import Entry
from tools import measure_releases
from tools.measure_releases import merged, rows_of, speeds_of, verdict_on, written

ENTRY = Entry(op="Abs", instead_of="two of Neg", sizes={"rows": (1, 8)}, before="t = Neg (x) y = Neg (t)")


def cases(*speeds: float | str) -> list[Case]:
    """Cases of one form, each of a speed, or with an error."""
    return [
        Case(ENTRY, given, error=speed)
        if isinstance(speed, str)
        else Case(ENTRY, given, ratios=[speed] * 20, seconds=[1])
        for given, speed in zip(ENTRY.cases, speeds, strict=True)
    ]


@pytest.mark.parametrize(
    ("speeds", "here", "verdict"),
    [
        ((1.2, 1.1), (1.2, 1.1), Verdict.PAYS),
        ((1.2, 0.8), (1.2, 1.1), Verdict.LOSES),
        ((1.2, 0.8), (1.2, 0.81), Verdict.PAYS),  # this processor is slow there, with each release
        ((1.2, 0.5), (1.2, 0.9), Verdict.PAYS),
        ((1.2, 0.8), (1.2, 0.98), Verdict.LOSES),
        ((0.8, 1.0), (0.8, 1.0), Verdict.NEUTRAL),
        ((1.2, 0.8), None, Verdict.LOSES),
    ],
)
def test_what_is_as_slow_with_the_release_of_the_table_is_no_matter_of_the_release(
    speeds: tuple[float, float], here: tuple[float, float] | None, verdict: Verdict
) -> None:
    control = {} if here is None else speeds_of(cases(*here))
    assert verdict_on(cases(*speeds), control) is verdict


@pytest.mark.parametrize(
    ("found", "rows"),
    [
        ((1.204, 0.8), [({"op": "Abs"}, ["loses", 0.8, 1.2])]),
        (("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED", "[ONNXRuntimeError] : 1 : FAIL"), [({"op": "Abs"}, None)]),
        ((1.2, "[ONNXRuntimeError] : 1 : FAIL"), []),
        (("its process died (-11)", "its process died (-11)"), []),
    ],
)
def test_a_row_says_what_was_measured_or_that_the_form_is_refused(found: tuple[Any, ...], rows: list[Any]) -> None:
    assert list(rows_of(cases(*found), {})) == rows


def test_rows_of_other_releases_and_forms_stay() -> None:
    data = {
        "releases": {},
        "costs": [
            {"op": "Abs", "speeds": {"1.20": ["pays", 1.1, 1.1], "1.9": None}},
            {"op": "Neg", "at": {"rows": [2, None]}, "speeds": {"1.20": ["pays", 1.1, 1.1]}},
        ],
    }
    rows = merged(data, "1.20", [({"op": "Abs"}, ["loses", 0.5, 0.5]), ({"op": "Exp"}, None)])
    assert rows == [
        {"op": "Abs", "speeds": {"1.9": None, "1.20": ["loses", 0.5, 0.5]}},
        {"op": "Neg", "at": {"rows": [2, None]}, "speeds": {"1.20": ["pays", 1.1, 1.1]}},
        {"op": "Exp", "speeds": {"1.20": None}},
    ]
    assert json.loads(written({**data, "costs": rows})) == {"releases": {}, "costs": rows}


def test_what_is_not_clear_is_held_against_a_form_where_it_seems_to_lose() -> None:
    for ratios, verdict in ((RATIOS, Verdict.UNKNOWN), ([1 / one for one in RATIOS], Verdict.PAYS)):
        assert verdict_on([Case(ENTRY, ENTRY.cases[0], ratios=ratios, seconds=[1])], {}) is verdict


RATIOS = [0.5, 0.5, 0.9, 0.9, 0.9, 1.5, 1.5]


def test_forms_to_measure_are_named() -> None:
    chosen = measure_releases.entries_of(["Swish", "Conv of opset 22"])
    assert [str(entry.form) for entry in chosen] == ["Swish", "Conv of opset 22"]
    every = measure_releases.entries_of([])
    assert [entry.form for entry in every] == [entry.form for entry in ENTRIES]
    assert all(entry.as_loaded for entry in (*chosen, *every)), "as they are deployed"
    with pytest.raises(SystemExit, match="no form named 'Abs'"):
        measure_releases.entries_of(["Abs"])
