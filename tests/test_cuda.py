"""What is optimized for CUDA runs on it, with the original's numbers (`make gpu`); what can be asked anywhere is."""

from __future__ import annotations

import pytest

from ortopt import optimize, zoo
from ortopt.analysis.providers import CUDA, usable

WORKS, REASON = usable(CUDA)


@pytest.mark.gpu
@pytest.mark.skipif(not WORKS, reason=REASON)
@pytest.mark.parametrize("name", ["bert_small__ts17", "gpt2_past__dyn18raw", "resnet18__ts13nf", "vit_tiny__ts17"])
def test_results_for_cuda_are_verified_on_cuda(name: str) -> None:
    result = optimize(zoo.cached(name), providers=["cuda", "cpu"], inputs=zoo.inputs(name))
    assert result.verified
    assert result.summary.after.nodes < result.summary.before.nodes


def test_residual_connections_are_fused_for_cuda() -> None:
    result = optimize(zoo.cached("bert_small__ts17"), providers=["cuda", "cpu"], verify=False)
    assert result.summary.after.ops["com.microsoft::SkipLayerNormalization"] >= 1
