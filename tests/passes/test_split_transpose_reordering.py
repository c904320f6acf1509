"""Queries, keys and values are split where their axes need fewer moves."""

from __future__ import annotations

from tests.passes import example_files
from tests.passes.sessions import check_second_run

TITLE = "a single axis moves / 2, 0, 3, 4, 1, 0, 2, 3, 4, 1, 1"


def test_a_second_run_changes_nothing() -> None:
    text = example_files.text("split_transpose_reordering", TITLE)
    check_second_run(text, {"Split": 1, "Squeeze": 2, "Transpose": 1})
