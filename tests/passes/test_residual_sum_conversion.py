"""A residual Add before a normalization is written so that ONNX Runtime does not join the two."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime

from ortopt import optimize
from ortopt.testing import parse

HEAD = "main (float[B,S,8] x, float[B,S,8] skip, float[8] scale, float[8] bias) => (float[B,S,8] y)"
BODY = "{ t = Add (x, skip) y = LayerNormalization (t, scale, bias) }"


def _loaded(model: onnx.ModelProto, folder: Path) -> list[str]:
    """The ops that ONNX Runtime makes of a model with its default optimizations."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "loaded.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def test_onnxruntime_leaves_the_result_alone(tmp_path: Path) -> None:
    """And does what this pass keeps it from: a release that no longer does needs no such pass."""
    original = parse(f"{HEAD} {BODY}")
    result = optimize(original, level=3, verify=False).model
    assert _loaded(onnx_proto(original), tmp_path) == ["SkipLayerNormalization"]
    assert _loaded(onnx_proto(result), tmp_path) == ["Sum", "LayerNormalization"]


def onnx_proto(model: object) -> onnx.ModelProto:
    import onnx_ir as ir

    assert isinstance(model, ir.Model)
    return ir.to_proto(model)
