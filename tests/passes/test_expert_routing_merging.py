"""Rows of all experts are found and gathered once, and results come back to them once."""

from __future__ import annotations

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import parse
from tests.passes import example_files


def test_a_whole_run() -> None:
    """Beside all other passes, twice."""
    result = optimize(parse(example_files.text("expert_routing_merging", "merges"), 18), level=3)
    assert result.verified
    assert figures(result.model).ops["NonZero"] == 1
    again = optimize(result.model, level=3)
    assert figures(again.model).ops == figures(result.model).ops
