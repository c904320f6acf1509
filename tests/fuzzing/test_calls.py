"""Shape rules and numpy kernels against ONNX Runtime, a few calls of each op; `make fuzz-shapes` draws thousands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuzzing.calls import DRAWINGS, draw
from fuzzing.campaign import campaign
from fuzzing.shapes import CALLS, NUMPY, call_of, examine, misfolded
from ortopt.analysis import kernels
from ortopt.analysis.providers import CPU
from ortopt.analysis.shape_rules import RULES
from ortopt.evaluation.numpy_kernels import KERNELS
from ortopt.evaluation.raw_tensors import Raw

ROOT = Path(__file__).parents[2]
EACH = 8
WITHOUT_KERNEL = {
    *("BiasDropout", "BiasSoftmax", "FusedMatMulActivation", "GemmaRotaryEmbedding", "GroupNorm", "LayerNormalization"),
    *("NhwcFusedConv", "PackedAttention", "PackedMultiHeadAttention", "QLinearMatMul", "SimplifiedLayerNormalization"),
    "SkipGroupNorm",
}
"""Ops of com.microsoft that ONNX Runtime has for other providers alone, or no longer."""


def test_every_shape_rule_and_every_numpy_kernel_is_drawn() -> None:
    assert set(RULES) | {("", op) for op in KERNELS} == set(DRAWINGS)


@pytest.mark.processes
def test_rules_and_kernels_state_what_onnxruntime_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tally = campaign(0, EACH * len(CALLS), worker="fuzzing.shapes")
    assert tally.found == []
    assert not tally.crashes
    folded = {name.removeprefix(NUMPY) for name in tally.rewrites if name.startswith(NUMPY)}
    assert folded == set(KERNELS)
    ran = {name for name in tally.rewrites if not name.startswith(NUMPY)}
    never = {f"{domain}::{op}".removeprefix("::") for domain, op in CALLS} - ran
    without = {f"com.microsoft::{op}" for op in WITHOUT_KERNEL}
    assert without <= never <= without | {"com.microsoft::MatMulFpQ4"}, "that one needs AVX-512"
    assert not any(kernels.has_kernel(CPU, draw.MICROSOFT, op, 1, {}) for op in WITHOUT_KERNEL)


def seed_of(op: str) -> int:
    """The first seed of an op whose call ONNX Runtime runs."""
    seeds = range(CALLS.index(("", op)), 100 * len(CALLS), len(CALLS))
    return next(seed for seed in seeds if examine(call_of(seed), seed).ran)


@pytest.mark.parametrize("op", ["Concat", "Transpose", "MaxPool", "Softmax"])
def test_a_rule_that_is_wrong_is_found(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, right = seed_of(op), RULES["", op]

    def wrong(call):  # type: ignore[no-untyped-def]
        right(call)
        call.shapes[0] = (*call.shapes[0], 1)

    monkeypatch.setitem(RULES, ("", op), wrong)
    assert {text.partition(":")[0] for text in examine(call_of(seed), seed).found} == {"fixed", "symbolic"}


def test_a_rule_that_raises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = seed_of("Softmax")
    monkeypatch.setitem(RULES, ("", "Softmax"), lambda call: call.types[7])
    assert "the rule raises IndexError" in examine(call_of(seed), seed).found[0]


def test_another_bit_is_found() -> None:
    call = call_of(seed_of("Neg"))
    zero, other = np.zeros(2, np.float32), -np.zeros(2, np.float32)
    truth = {call.nodes[0].output[0]: Raw(1, (2,), zero)}
    assert list(misfolded(call, [[ir.tensor(zero)]], truth)) == []
    assert len(list(misfolded(call, [[ir.tensor(other)]], truth))) == 1


def test_folding_what_onnxruntime_refuses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(CALLS.index(("", "Concat")), 400 * len(CALLS), len(CALLS))
    refused = next(seed for seed in seeds if call_of(seed).opset >= 7 and not examine(call_of(seed), seed).ran)
    monkeypatch.setattr("fuzzing.shapes.compute", lambda call: (np.zeros(1, np.float32),))
    assert "which ONNX Runtime refuses" in examine(call_of(refused), refused).found[0]
