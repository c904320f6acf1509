"""What ONNX Runtime fuses at load, held to what it does: the model is loaded, and its graph looked at."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ortopt.analysis.load_time_fusions import slow_residuals
from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER
from ortopt.optimization.pipeline import declare
from ortopt.options import Options
from ortopt.serialization.save import save
from ortopt.testing import parse

RESIDUAL = """
main (float[N,S,4] x, float[N,S,4] z, float[S,4] p) => (float[N,S,4] y) {
    w = Constant <value = float[4] {1,2,3,4}> ()
    b = Constant <value = float[4] {1,2,3,4}> ()
    q = Erf (z)
    r = Erf (x)
    a = Add (r, q)
    y = LayerNormalization (a, w, b)
}"""


def fused_at_load(path: Path) -> int:
    """How many SkipLayerNormalization nodes ONNX Runtime makes of a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path.with_suffix(".loaded.onnx"))
    onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    graph = onnx.load(path.with_suffix(".loaded.onnx")).graph
    return sum(node.op_type == "SkipLayerNormalization" for node in graph.node)


@pytest.mark.parametrize(
    ("model", "joined"),
    [
        (RESIDUAL, 1),
        (RESIDUAL.replace("Add (r, q)", "Sum (r, q)"), 0),
        (RESIDUAL.replace("Add (r, q)", "Add (r, p)"), 0),
        (RESIDUAL.replace("[N,S,4]", "[N,4]").replace("[S,4] p", "[4] p"), 0),
    ],
    ids=["residual", "sum", "stretched", "two dimensions"],
)
def test_residuals_are_joined(model: str, joined: int, tmp_path: Path) -> None:
    loaded = parse(model)
    infer_model(loaded)
    assert len(list(slow_residuals(loaded))) == joined
    declare(loaded, Options(value_info=True), NEVER)
    save(loaded, tmp_path / "m.onnx")
    assert fused_at_load(tmp_path / "m.onnx") == joined
