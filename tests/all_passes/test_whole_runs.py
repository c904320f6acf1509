"""What a pass rewrites by itself, it rewrites in a whole run, too: no other pass has put it out of work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from onnx import ModelProto

from ortopt import registry
from ortopt.optimization.request import new_optimization
from ortopt.options import Fusions, Numerics, Options, Target
from ortopt.transformer import GraphTransformer
from tests.all_passes.pass_examples import WHOLE_RUNS, examples, has_tests

PASSES = {kind.name: kind for kind in registry.installed() if has_tests(kind.name) and kind.name not in WHOLE_RUNS}

OUT_OF_WORK = {
    "group_query_attention_fusion": "the standard Attention is faster, from the release on that has it",
    "matmul_transpose_fusion": "transpose_optimizer leaves no Transpose in models that are so small",
    "shape_sharing": "shape_folding and shape_rebuilding leave nothing in models that are so small",
}
"""Passes none of whose examples is theirs in a whole run, with the reason."""


def rewrites(kind: type[GraphTransformer], model: ModelProto, given: dict[str, Any], fusions: Fusions) -> bool:
    """Whether a pass rewrites anything in a run to its last level, at least to level 3."""
    options = given.get("options") or Options(for_threads=1)  # with which forms are taken that lose with several
    changed: dict[str, Any] = {"level": max(3, *kind.levels), "fusions": fusions}
    if "target" in given:
        changed["target"] = Target(given["target"])
    elif kind.targets and options.target not in kind.targets:
        changed["target"] = kind.targets[0]
    if kind.providers:
        changed["providers"] = tuple(dict.fromkeys((kind.providers[0], *options.providers)))
    if not kind.enabled or kind.numerics is Numerics.APPROXIMATE:
        changed["enable"] = (kind.name,)
    run = new_optimization(model.SerializeToString(), replace(options, **changed), observers=[])
    return any(each.transformer == kind.name and each.rewrites for each in run.run(verify=False).summary.passes)


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_pass_has_work_in_a_whole_run(name: str) -> None:
    """By default, or where every fused form is taken whatever it costs."""
    has_work = any(
        rewrites(PASSES[name], model, given, fusions)
        for fusions in (Fusions.DEFAULT, Fusions.ALL)
        for model, given in examples(name)
    )
    assert has_work is (name not in OUT_OF_WORK)
