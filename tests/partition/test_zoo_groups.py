"""A few zoo models grouped for every list of providers; `make zoo` does all of them."""

from __future__ import annotations

import pytest

from benchmarks import groups
from ortopt import zoo
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.load import load

SMALL = ("control_flow__script17", "greedy_loop__script17", "lstm_tagger__ts13")


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("optimized", [False, True], ids=["as exported", "optimized"])
def test_a_model_that_onnxruntime_can_load_is_grouped_whole_and_keeps_its_numbers(name: str, optimized: bool) -> None:
    table, failed = groups.sweep((name,), optimized)
    assert not failed
    assert name in table


@pytest.mark.parametrize("name", ["gpt2_past__dyn18raw", "llama_past__dyn20raw"])
def test_shapes_that_cannot_be_rebuilt_leave_nothing_behind(name: str) -> None:
    """Nodes made for a shape that then depended on more than the group's inputs stayed users of the graph's values."""
    model = load(zoo.cached(name))
    assert group(model, PartitionOptions(policy="literal", argument_limit=8))
    for value in (value for node in model.graph for value in node.outputs):
        assert all(use.node.graph is not None for use in value.uses())
