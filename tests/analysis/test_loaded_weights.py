"""Weights of a loaded model: what is computed of constants alone counts in the place of these constants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from ortopt import optimize
from ortopt.analysis.loaded_weights import loaded_bytes
from ortopt.reporting.report import as_dict
from ortopt.serialization.load import load
from ortopt.testing import parse


@pytest.mark.parametrize(
    ("text", "loaded"),
    [
        ("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }", 8),
        ("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { z = Add (x, w) y = Add (z, w) }", 8),
        ("(float[2] x) => (float[2] y) <float[1] w = {1}, float[2] v = {1, 2}> { z = Mul (w, v) y = Add (x, z) }", 8),
        (
            "(float[2] x) => (float[A,B] y) <int64[2] s = {4, 2}, float w = {1}> { z = Expand (w, s) y = Add (x, z) }",
            32,
        ),
        ("(float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}> { y = Neg (x) z = Neg (w) }", 8),
        (
            "(float x) => (float[A] y) <int8[2] w={1, 2}, float s={2}> { z = DequantizeLinear (w, s) y = Mul (x, z) }",
            6,
        ),
        ("(float[2] x) => (float[2] y) <int64[1] s = {2}> { z = RandomUniformLike (s) y = Add (x, z) }", 8),
        ('(float[2] x) => (string[2] y) <string[2] w = {"a", "bc"}> { y = Identity (w) }', 3),
        ("(float[2] x) => (float[2] y) { w = Constant <value = float[2] {1, 2}> () y = Add (x, w) }", 8),
    ],
)
def test_what_nodes_read_when_the_model_runs_counts(text: str, loaded: int) -> None:
    model = load(onnx.shape_inference.infer_shapes(ir.to_proto(parse(f"g {text}"))))
    assert loaded_bytes(model) == loaded


def test_weights_that_branches_read_count_once() -> None:
    model = load(
        onnx.shape_inference.infer_shapes(
            ir.to_proto(
                parse("""g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[1] v = {1}> {
            p = Mul (w, v)
            y = If (c) <then_branch = t () => (float[2] a) { a = Add (x, p) },
                else_branch = e () => (float[2] b) { d = Add (x, p) b = Add (d, w) }> }""")
            )
        )
    )
    assert loaded_bytes(model) == 16


def test_a_report_says_when_loaded_weights_are_more() -> None:
    weight = numpy_helper.from_array(np.full((192, 192, 3, 3), 0.01, np.float32), "w")
    model = ir.to_proto(
        parse(
            """g (float[1,192,16,16] x, float[192,192,3,3] w) => (float[A,B,C,D] y) {
            y = Conv <pads = [1, 1, 1, 1]> (x, w) }"""
        )
    )
    del model.graph.input[1]
    model.graph.initializer.append(weight)
    result = optimize(model, target="web", only=["winograd_conversion"])
    data = as_dict(result)
    assert data["loaded_bytes"]["before"] == 4 * 192 * 192 * 9
    assert data["loaded_bytes"]["after"] > 4 * 192 * 192 * 36
    assert "once loaded, its weights are" in data["larger"][-1]
