"""A residual Add before a normalization is written so that ONNX Runtime does not join the two."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from ortopt import optimize
from ortopt.testing import check_rewrites, parse
from tests.passes.tables import keeps

PASS = "residual_sum_conversion"
HEAD = "main (float[B,S,8] x, float[B,S,8] skip, float[8] scale, float[8] bias) => (float[B,S,8] y)"
BODY = "{ t = Add (x, skip) y = LayerNormalization (t, scale, bias) }"


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_the_add_becomes_a_sum(kind: str) -> None:
    text = f"{HEAD} {BODY}".replace("float", kind)
    check_rewrites(PASS, text, after=text.replace("Add", "Sum"))


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


test_it_stays = keeps(
    PASS,
    [
        ("rank", HEAD.replace("float[B,S,8] skip", "float[8] skip") + BODY),
        ("its operands differ in shape", HEAD.replace("float[B,S,8] skip", "float[B,1,8] skip") + BODY),
        ("its operands differ in shape", HEAD.replace("float[B,S,8] skip", "float[B,T,8] skip") + BODY),
        ("rank", HEAD.replace("float[B,S,8]", "float[B,S,S,8]") + BODY),
        ("ONNX Runtime joins no others", HEAD.replace("float", "double") + BODY),
        ("used", HEAD.replace("y)", "y, float[B,S,8] t)") + BODY),
        ("used", HEAD + "{ t = Add (x, skip) n = LayerNormalization (t, scale, bias) y = Add (n, t) }"),
        (
            "it is a parameter of the normalization",
            "main (float[1,1,8] x, float[1,1,8] skip, float[8] z) => (float[8] y)"
            " { t = Add (x, skip) y = LayerNormalization (z, t) }",
        ),
        ("it serves ONNX Runtime", f"{HEAD} {BODY}", {"target": "onnx"}),
    ],
)
