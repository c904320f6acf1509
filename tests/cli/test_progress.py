"""Progress: each phase begins anew and moves, also the one that verifies."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ortopt.cli.optimization import Progress


@pytest.fixture
def shown() -> Progress:
    return Progress(Console(file=io.StringIO(), force_terminal=True, width=80))


def task(progress: Progress) -> Any:
    (only,) = progress._bar.tasks
    return only


def test_a_phase_of_unknown_length_moves(shown: Progress) -> None:
    with shown:
        shown.expect(10)
        shown._bar.update(shown._task, completed=10)
        assert task(shown).finished
        with shown.phase("verify"):
            assert task(shown).total is None, "a bar of unknown length is drawn moving"
            assert not task(shown).finished
            assert task(shown).completed == 0
            assert task(shown).description.startswith("verifying")


def test_optimizing_counts_again_after_another_phase(shown: Progress) -> None:
    with shown, shown.phase("load"):
        assert task(shown).total is None
        shown.expect(4)
        assert (task(shown).total, task(shown).completed) == (4, 0)
