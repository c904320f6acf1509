"""ONNX Runtime's own test models: what its transformer reaches on each, or better; and where ortopt differs, and why.

ONNX Runtime's counts (``expected.csv``) are of a run with that one transformer; ours of a whole level that takes every
fusion.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.serialization.load import load
from ortopt.verification.verify import verify
from tests.texts import table

MODELS = Path(__file__).parents[1] / "data" / "onnxruntime"
TABLES = Path(__file__).parent / "onnxruntime_models.txt"
MICROSOFT = "com.microsoft::"


class Reached(NamedTuple):
    """What is left of a model.

    Attributes:
        level: The level that ortopt runs.
        ops: Node counts, exactly: what is not named is not there.
        than: ONNX Runtime's counts, where ours are others.
        because: Why they are.
    """

    level: int
    ops: Mapping[str, int]
    than: Mapping[str, int]
    because: str


def counts(text: str) -> dict[str, int]:
    """``Add 4, Identity 1`` as counts by op."""
    return {op: int(count) for op, count in (one.split() for one in text.split(", ") if one)}


EXPECTED = {
    name: Reached(int(level), counts(ops), counts(than), because)
    for name, level, ops, than, because in table(TABLES, "reached")
}
"""By model; the rows of ONNX Runtime's transformers that have no counterpart in ortopt yet are in `NOT_REACHED`."""

NOT_REACHED = dict(table(TABLES, "not reached"))
NOT_RUN = dict(table(TABLES, "not run"))

INPUTS = {
    "fusion/reshape_fusion_input_is_graph_input": {
        "SubgraphRoot": np.arange(6000, dtype=np.float32).reshape(10, 20, 30),
        "AnotherInput": np.zeros((2, 3, 30), np.float32),
    }
}
"""Inputs for the comparison, where seeded ones do not fit one another."""

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


def path_of(name: str) -> Path:
    return MODELS / f"{name}.onnx"


@pytest.mark.parametrize("name", EXPECTED)
def test_reaches_what_onnx_runtime_does(name: str) -> None:
    expected = EXPECTED[name]
    result = optimize(path_of(name), level=expected.level, fusions="all", verify=False)
    assert not result.summary.failures
    assert figures(result.model).ops == dict(expected.ops)
    assert bool(expected.than) == bool(expected.because)
    outcome = verify(load(path_of(name)), result.model, inputs=INPUTS.get(name), in_process=True)
    assert outcome.status == ("impossible" if name in NOT_RUN else "verified"), outcome.reason


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
    outcome = verify(original, result.model, inputs=INPUTS.get(name), sizes=SIZES.get(name), in_process=True)
    ends = "not shown" if name in NOT_SHOWN else "verified"
    assert outcome.status == ("impossible" if name in NOT_RUN else ends), outcome.reason
    assert NOT_RUN.get(name, "") in outcome.reason


def test_the_models_are_small() -> None:
    assert sum(path.stat().st_size for path in MODELS.rglob("*")) < 1_500_000
    for path in MODELS.rglob("*.onnx"):
        assert onnx.load(path).graph.node
