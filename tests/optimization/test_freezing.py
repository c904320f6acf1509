"""Weights that are inputs, too: a caller may replace them, unless he says that nobody does."""

from __future__ import annotations

import io

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from ortopt import optimize
from ortopt.reporting import long_report, report

pytestmark = pytest.mark.usefixtures("models_run_here")

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
main (float[N,3,4,4] x, float[2,3,1,1] w, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2,4,4] y) {
    c = Conv (x, w) y = BatchNormalization (c, s, b, m, v) }"""


def model() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(TEXT)
    shapes = {"w": (2, 3, 1, 1), "s": (2,), "b": (2,), "m": (2,), "v": (2,)}
    for name, shape in shapes.items():
        array = np.linspace(0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def lines(result: object) -> str:
    out = report.console(io.StringIO())
    long_report.show(report.as_dict(result), out)  # type: ignore[arg-type]
    return out.file.getvalue()  # type: ignore[attr-defined]


def names(graph: ir.Graph) -> list[str]:
    return [str(value.name) for value in graph.inputs]


def test_they_stay_inputs_and_the_report_says_how_to_fold_them() -> None:
    result = optimize(model())
    assert result.summary.after.ops == {"BatchNormalization": 1, "Conv": 1}
    assert names(result.model.graph) == ["x", "w", "s", "b", "m", "v"]
    assert "5 weights are inputs, too" in " ".join(lines(result).split())
    assert "--freeze-initializers" in lines(result)


def test_they_are_constants_where_the_caller_says_so() -> None:
    result = optimize(model(), freeze_initializers=True)
    assert result.verified
    assert result.summary.after.ops == {"Conv": 1}
    assert names(result.model.graph) == ["x"]
    assert "--freeze-initializers" not in lines(result)
