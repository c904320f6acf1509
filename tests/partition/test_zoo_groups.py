"""A few zoo models grouped for every list of providers; `make zoo` does all of them."""

from __future__ import annotations

import pytest

from benchmarks import groups

SMALL = ("control_flow__script17", "greedy_loop__script17", "lstm_tagger__ts13")


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("optimized", [False, True], ids=["as exported", "optimized"])
def test_a_model_that_onnxruntime_can_load_is_grouped_whole_and_keeps_its_numbers(name: str, optimized: bool) -> None:
    table, failed = groups.sweep((name,), optimized)
    assert not failed
    assert name in table
