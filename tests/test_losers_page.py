"""The page of forms that are not taken: generated, and true."""

from __future__ import annotations

import json

import pytest

from ortopt import registry
from ortopt.analysis import costs
from ortopt.analysis.providers import CPU
from tools import document_losers

DATA = json.loads(document_losers.TRIED.read_text(encoding="utf-8"))


def test_the_page_is_what_is_generated() -> None:
    assert document_losers.PAGE.read_text(encoding="utf-8") == document_losers.page(), (
        "run: python -m tools.document_losers"
    )


def test_every_form_that_loses_is_there_with_its_figure() -> None:
    page = document_losers.page()
    for cost in costs.shipped().costs:
        if cost.provider == CPU and cost.verdict is costs.Verdict.LOSES:
            assert cost.speed is not None
            assert f"| `{cost.form}` | {cost.instead_of} | {cost.speed[0]:.2f}" in page


@pytest.mark.parametrize("row", DATA["level3"], ids=lambda row: str(row["catalog"]))
def test_what_is_not_built_has_a_figure_and_a_reason(row: dict[str, object]) -> None:
    if "built" in row:
        assert row["built"] in {kind.name for kind in registry.installed()}
    else:
        assert row["speed"]
        assert row["why"]
        assert row["sizes"]


@pytest.mark.parametrize("source", [row["source"] for row in (*DATA["level3"], *DATA["tried"]) if "source" in row])
def test_figures_come_from_a_machine_that_the_table_knows(source: str) -> None:
    assert source in {"xeon", "epyc", "both"}


def test_reasons_are_of_forms_in_the_table() -> None:
    assert set(DATA["reasons"]) <= {str(cost.form) for cost in costs.shipped().costs}
