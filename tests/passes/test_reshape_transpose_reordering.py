"""Rows become an image, and an image becomes rows, by a Transpose that ONNX Runtime joins with its reordering."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse, run

PASS = "reshape_transpose_reordering"
WEIGHT = "float[4,1,1,1] w = {1, -2, 3, 4}"
CONV = "Conv <group = 4>"


BOTH = f"""main (float[B,6,4] x) => (float[] y) <{WEIGHT}, int64[4] s = {{0, 4, 2, 3}}, int64[3] e = {{0, 4, 6}}> {{
    a = Abs (x) t = Transpose <perm = [0, 2, 1]> (a) i = Reshape (t, s) c = {CONV} (i, w)
    r = Reshape (c, e) o = Transpose <perm = [0, 2, 1]> (r) y = Neg (o) }}"""


def test_an_empty_batch() -> None:
    after = parse(BOTH)
    assert run(PASS, after)[0]
    x = np.zeros((0, 6, 4), np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    shapes = [
        ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].shape
        for model in (parse(BOTH), after)
    ]
    assert shapes == [(0, 6, 4)] * 2


def test_onnxruntime_reorders_without_a_transpose(tmp_path: Path) -> None:
    """Both Transposes become part of the reorderings when the result is loaded."""
    after = parse(BOTH)
    assert run(PASS, after)[0]
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(to_bytes(after), options, providers=["CPUExecutionProvider"])
    ops = Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)
    if "ReorderInput" not in ops:
        pytest.skip("this processor has no blocked kernels")
    assert ops == {"Abs": 1, "Conv": 1, "Neg": 1, "ReorderInput": 1, "ReorderOutput": 1, "Reshape": 2}


def test_a_second_run_changes_nothing() -> None:
    result = optimize(parse(BOTH), level=3, verify=False)
    assert figures(result.model).ops == {"Abs": 1, "Conv": 1, "Neg": 1, "Reshape": 2, "Transpose": 2}
    again = optimize(result.model, level=3, verify=False)
    assert to_bytes(again.model) == to_bytes(result.model)
