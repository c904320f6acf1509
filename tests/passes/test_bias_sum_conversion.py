"""A bias before a Gelu is written so that ONNX Runtime does not join the two."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from ortopt import optimize
from ortopt.options import Target
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.tables import keeps

PASS = "bias_sum_conversion"
TEXT = "main (float[B,S,4] x) => (float[B,S,4] y) <float[4] b = {1, 2, 3, 4}> { t = Add (x, b) y = Gelu (t) }"


@pytest.mark.parametrize("total", ["Add (x, b)", "Add (b, x)"])
@pytest.mark.parametrize("op", ["Gelu", "com.microsoft.Gelu"])
def test_the_add_becomes_a_sum(total: str, op: str) -> None:
    text = TEXT.replace("Add (x, b)", total).replace("Gelu", op)
    check_rewrites(PASS, text, after=f"t = Sum (x, b) y = {op} (t)", opset=20)


def loaded(model: ir.Model, folder: Path) -> list[str]:
    """The ops that ONNX Runtime makes of a model with its default optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "loaded.onnx")
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, ["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "loaded.onnx").graph.node]


def test_onnxruntime_leaves_the_result_alone(tmp_path: Path) -> None:
    """And does what this pass keeps it from: a release that no longer does needs no such pass."""
    original = parse(TEXT, opset=20)
    assert loaded(original, tmp_path) == ["BiasGelu"]
    assert loaded(optimize(original, level=3, verify=False).model, tmp_path) == ["Sum", "Gelu"]


KEPT = {
    "no Gelu comes after": TEXT.replace("Gelu", "Erf"),
    "the value is used elsewhere": TEXT.replace("y)", "y, float[B,S,4] t)"),
    "it is for single precision only": TEXT.replace("float[", "double["),
    "it is no bias of the last dimension": TEXT.replace("float[4] b", "float[1,4] b"),
    "no operand is a constant": TEXT.replace("4] x)", "4] x, float[4] b)").replace("<float[4] b = {1, 2, 3, 4}>", ""),
}


test_keeps = keeps(PASS, KEPT, opset=20)


def test_other_runtimes() -> None:
    check_keeps(PASS, TEXT, None, target=Target.ONNX, opset=20)
