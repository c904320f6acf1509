"""ONNX Runtime's own test models: what its transformer reaches on each, or better; and where ortopt differs, and why.

ONNX Runtime's counts (``expected.csv``) are of a run with that one transformer; ours of a whole level that takes every
fusion.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.serialization.load import load
from ortopt.verification.verify import verify

MODELS = Path(__file__).parents[1] / "data" / "onnxruntime"
MICROSOFT = "com.microsoft::"
RESHAPED = np.arange(6000, dtype=np.float32).reshape(10, 20, 30)


class Reached(NamedTuple):
    """What is left of a model.

    Attributes:
        level: The level that ortopt runs.
        ops: Node counts, exactly: what is not named is not there.
        than: ONNX Runtime's counts, where ours are others.
        because: Why they are.
        inputs: Inputs for the comparison, where seeded ones do not fit one another.
        runs: Whether the original runs at all.
    """

    level: int
    ops: Mapping[str, int]
    than: Mapping[str, int] = {}
    because: str = ""
    inputs: Mapping[str, Any] | None = None
    runs: bool = True


NOT_TRIGGERED = {"Shape": 3, "Gather": 2, "Unsqueeze": 2, "Slice": 1, "Concat": 1, "Pad": 1, "Reshape": 1}
EXPECTED = {
    "noop-add": Reached(
        1, {"Add": 4, "Identity": 1}, {"Add": 2},
        "ONNX Runtime drops x + 0.0 of float and float16, which turns -0.0 into +0.0; two others enlarge the result",
    ),
    "constant_float16_topk": Reached(1, {"TopK": 1}),
    "fusion/constant_folding_for_ops_having_missing_optional_inputs": Reached(1, {"Reshape": 1}),
    "fusion/constant_folding_remove_dangling_inputs": Reached(1, {"Mul": 1}),
    "fusion/fuse-pad-avgpool": Reached(1, {"AveragePool": 1}),
    "fusion/fuse-pad-maxpool": Reached(
        1, {"Pad": 1, "MaxPool": 1}, {"MaxPool": 1}, "a MaxPool pads with -inf, and not with 0"
    ),
    "fusion/fuse-matmul-bn-non-ignorable-node": Reached(
        1, {"Gemm": 1}, {"BatchNormalization": 1, "MatMul": 1},
        "ONNX Runtime stops at an Identity, which is gone here by then",
    ),
    "fusion/not_where": Reached(1, {"Not": 1, "Where": 5}),
    "matmul_add_fusion/2Input/model": Reached(1, {"Gemm": 1}),
    "matmul_add_fusion/3Input/model": Reached(1, {"Gemm": 1}),
    "matmul_add_fusion/matmul_add_not_broadcastable": Reached(1, {"MatMul": 1, "Add": 1, "Mul": 1}),
    "fusion/gemm_transpose_2outputs_from_transpose_to_2gemms": Reached(
        1, {"Gemm": 2, "Transpose": 1}, {"Gemm": 2, "Transpose": 1, "Identity": 1}, "the Identity goes too"
    ),
    "fusion/gemm_transpose_output_transposed": Reached(1, {"Gemm": 1}),
    "fusion/gemm_transpose_inputs_output_transposed_2": Reached(1, {"Gemm": 1}),
    "fusion/reshape": Reached(1, {"Add": 1, "Reshape": 1}),
    "fusion/reshape_fusion_internal_node_is_graph_output": Reached(
        1, {"Reshape": 1}, {"Shape": 1, "Gather": 1, "Reshape": 1}, "the graph output is a known number"
    ),
    "fusion/reshape_fusion_input_is_graph_input": Reached(
        1, {"Reshape": 1}, inputs={"SubgraphRoot": RESHAPED, "AnotherInput": np.zeros((2, 3, 30), np.float32)}
    ),
    "fusion/reshape_fusion_concat_subgraph": Reached(1, {"Reshape": 1}),
    "fusion/reshape_fusion_concat_subgraph_not_triggered": Reached(
        1, {"Reshape": 1}, NOT_TRIGGERED, "all of it is constant; the Reshape fails now as it did before", runs=False
    ),
    "fusion/reshape_fusion_concat_subgraph_div": Reached(1, {"Reshape": 1}),
    "gemm_activation_fusion/gemm_activation_fusion": Reached(2, {f"{MICROSOFT}FusedGemm": 1}),
    **{
        f"fusion/matmul_scale_{name}": Reached(2, {f"{MICROSOFT}FusedMatMul": 1})
        for name in ("double", "in0", "in0_in1", "in0_in1_out", "transposescalematmul_in0_in1_out")
    },
    "fusion/matmul_scale_reused_input_scale": Reached(
        2, {"MatMul": 2, "Mul": 1}, {f"{MICROSOFT}FusedMatMul": 2}, "two products read what is scaled"
    ),
    "fusion/gelu_format2_0": Reached(2, {f"{MICROSOFT}Gelu": 1}),
    "fusion/gelu_format2_1": Reached(2, {f"{MICROSOFT}Gelu": 1}),
    "fusion/bias_onnx_gelu_fusion": Reached(2, {f"{MICROSOFT}BiasGelu": 1}),
    "fusion/fast_gelu": Reached(
        2, {f"{MICROSOFT}FastGelu": 1}, {f"{MICROSOFT}FastGelu": 1, "Identity": 2}, "the Identities go too"
    ),
    "fusion/fast_gelu_use_graph_input": Reached(2, {f"{MICROSOFT}FastGelu": 1}),
    "fusion/fast_gelu2_with_bias_use_graph_input": Reached(2, {f"{MICROSOFT}FastGelu": 1}),
}  # fmt: skip
"""By model; the rows of ONNX Runtime's transformers that have no counterpart in ortopt yet are in `NOT_REACHED`."""

NOT_REACHED = {
    "fusion/attention_mask_no_cast": "the three projections are not packed into one Attention",
    "fusion/gpt2_past_one_layer": "keys and values of the past are stacked in one tensor, as Attention takes them",
    "approximation/gelu": "FastGelu is an approximation of Gelu, which is made on request only",
    "approximation/gelu_add_bias": "FastGelu is an approximation of Gelu, which is made on request only",
    "approximation/gelu_add_matmul": "FastGelu is an approximation of Gelu, which is made on request only",
    "fusion/dynamic_quantize_matmul": "products of what is quantized at run time are not fused",
    "fusion/dynamic_quantize_matmul_bias_ND": "products of what is quantized at run time are not fused",
    "fusion/embed_layer_norm_format1": "EmbedLayerNormalization is not made",
}
"""Rows of which ortopt keeps more, with what it lacks."""

NOT_HERE = {"fusion/fuse-conv-bn-mul-add-unsqueeze"}
"""Rows whose model is not among the files."""


NOT_SHOWN = {
    "fusion/bias_dropout_residual_fusion_multiple_consumers2",
    "fusion/bias_dropout_residual_same_shape_fusion",
    "fusion/bias_dropout_residual_same_shape_fusion_dim_is_param",
}
"""Models all of whose outputs are random: a Dropout whose mode only a run knows."""

SIZES = {
    "approximation/gelu_add_matmul": {"batch": 1, "seq_len": 2},
    "fusion/qdq_fusion_int8": {"unk_1": 1, "unk_2": 1},
}
"""Open dimensions of models whose others are large: what is drawn by itself is millions of numbers, often."""

NOT_RUN = {
    "fusion/bias_softmax_fusion_bfloat16": "NOT_IMPLEMENTED",
    "fusion/bitmask_bias_dropout_fusion_residual": "Fatal error",
    "fusion/embed_layer_norm_format1": "out of data bounds",
    "fusion/embed_layer_norm_format7": "out of data bounds",
    "qdq_optimization/dup_qdq_bfloat16": "NOT_IMPLEMENTED",
    "stft_negative_frame_length": "Non-zero status code",
}
"""Models that ONNX Runtime does not run on the CPU, with a word of why; the result is not compared."""


def path_of(name: str) -> Path:
    return MODELS / f"{name}.onnx"


@pytest.mark.parametrize("name", EXPECTED)
def test_reaches_what_onnx_runtime_does(name: str) -> None:
    expected = EXPECTED[name]
    result = optimize(path_of(name), level=expected.level, fusions="all", verify=False)
    assert not result.summary.failures
    assert figures(result.model).ops == dict(expected.ops)
    assert bool(expected.than) == bool(expected.because)
    outcome = verify(load(path_of(name)), result.model, inputs=expected.inputs, in_process=True)
    assert outcome.status == ("verified" if expected.runs else "impossible"), outcome.reason


def rows() -> list[tuple[str, dict[str, int]]]:
    """The models of ``expected.csv``, and how many nodes of the named ops ONNX Runtime leaves."""
    with (MODELS / "expected.csv").open() as file:
        return [
            (row[0].removesuffix(".onnx"), dict(map(after, row[2].split(", ")))) for row in list(csv.reader(file))[1:]
        ]


def after(change: str) -> tuple[str, int]:
    """``ms.Gelu 0->1`` as the op and the last number."""
    op, _, counts = change.rpartition(" ")
    return op.replace("ms.", MICROSOFT), int(counts.partition("->")[2])


@pytest.mark.parametrize(("name", "left"), rows())
def test_each_row_of_onnx_runtime_is_reached_or_told(name: str, left: Mapping[str, int]) -> None:
    assert (name in EXPECTED) + (name in NOT_REACHED) + (name in NOT_HERE) == 1
    if name in EXPECTED:
        reached = EXPECTED[name].than or EXPECTED[name].ops
        assert {op: reached.get(op, 0) for op in left} == left
    assert path_of(name).exists() == (name not in NOT_HERE)


@pytest.mark.parametrize("name", sorted(str(path.relative_to(MODELS))[:-5] for path in MODELS.rglob("*.onnx")))
def test_every_model_stays_what_it_is(name: str) -> None:
    original = load(path_of(name))
    result = optimize(path_of(name), level=3, verify=False)
    assert not result.summary.failures
    assert result.summary.after.nodes <= result.summary.before.nodes
    inputs = EXPECTED[name].inputs if name in EXPECTED else None
    outcome = verify(original, result.model, inputs=inputs, sizes=SIZES.get(name), in_process=True)
    runs = EXPECTED[name].runs if name in EXPECTED else name not in NOT_RUN
    ends = "not shown" if name in NOT_SHOWN else "verified"
    assert outcome.status == (ends if runs else "impossible"), outcome.reason
    assert NOT_RUN.get(name, "") in outcome.reason


def test_the_models_are_small() -> None:
    assert sum(path.stat().st_size for path in MODELS.rglob("*")) < 1_500_000
    for path in MODELS.rglob("*.onnx"):
        assert onnx.load(path).graph.node
