"""Real models, cut into groups: the runtime gives what ONNX Runtime gives, and the host runs nothing."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from ortopt import InferenceSession, zoo
from ortopt.analysis.providers import CPU
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.load import load
from tests.runtime.side_by_side import quiet


@pytest.mark.parametrize(
    "name",
    ["control_flow__script17", "greedy_loop__script17", "gpt2_past__ts17", "bert_small_int8__dynamic_int8",
     "lstm_tagger__ts13", "t5_encoder__ts17", "light_squeezenet"],
)  # fmt: skip
@pytest.mark.parametrize("cut", ["fine", "whole"])
def test_zoo_models_in_groups(name: str, cut: str) -> None:
    path, feeds = zoo.cached(name), zoo.inputs(name)
    options = quiet()
    expected = onnxruntime.InferenceSession(path, options, providers=[CPU]).run(None, feeds)
    model = load(path)
    if cut == "fine":
        group(model, PartitionOptions(policy="literal", argument_limit=6))
    mine = InferenceSession(model, options, ["cpu"], specialize_after=1_000_000)  # never: but planned
    assert {one.wanted_provider for one in mine.groups} == {CPU}
    for got, right in zip(mine.run(None, feeds), expected, strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_allclose(got, right, rtol=2e-4, atol=2e-4 * max(1.0, float(np.abs(right).max(initial=0))))
    assert {one.provider for one in mine.groups} <= {CPU, None}
    assert mine.statistics.fallbacks == 0
