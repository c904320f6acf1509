"""Names that ONNX Runtime takes for itself at load, without asking whether the model has them."""

from __future__ import annotations

import onnxruntime
import pytest

import ortopt
from ortopt.serialization import shadowed_names
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse

SAVED_BY_ORT = """
    main (float[2,3,4] x) => (float[6,4] y) <
        float[4,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}, float[4] b = {1, 2, 3, 4},
        int64[2] SHAPE = {6, 4}
    > {
        m = MatMul (x, w)
        a = Add (m, b)
        t = Tanh (a)
        y = Reshape (t, SHAPE)
    }"""


@pytest.mark.parametrize("name", ["gemm_input_shape", "gemm_output_shape"])
def test_the_result_loads_with_the_optimizations_of_onnx_runtime(name: str) -> None:
    content = to_bytes(ortopt.optimize(parse(SAVED_BY_ORT.replace("SHAPE", name)), level=1, verify=False).model)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["y"]


def test_only_such_names_change_and_the_new_ones_are_free() -> None:
    model = parse(
        """
        main (float[2] gemm_input_shape, float[2] x) => (float[2] gemm_output_shape) {
            gemm_input_shape_token_3 = Add (gemm_input_shape, x)
            gemm_input_shape_token_3_1 = Neg (gemm_input_shape_token_3)
            gemm_input_shapes = Neg (gemm_input_shape_token_3_1)
            gemm_output_shape = Neg (gemm_input_shapes)
        }"""
    )
    shadowed_names.avoid_load_time_names(model)
    assert [value.name for value in model.graph.inputs] == ["gemm_input_shape", "x"]
    assert [node.outputs[0].name for node in model.graph] == [
        "gemm_input_shape_token_3_2",
        "gemm_input_shape_token_3_1",
        "gemm_input_shapes",
        "gemm_output_shape",
    ]
    shadowed_names.avoid_load_time_names(model)
    assert model.graph[0].outputs[0].name == "gemm_input_shape_token_3_2"


def test_values_of_nested_graphs_too() -> None:
    model = parse(
        """
        main (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = g () => (float[2] p) { gemm_output_shape = Neg (x) p = Abs (gemm_output_shape) },
                else_branch = h () => (float[2] q) { q = Exp (x) }
            >
        }"""
    )
    shadowed_names.avoid_load_time_names(model)
    (branch, _) = (model.graph[0].attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    assert [node.outputs[0].name for node in branch] == ["gemm_output_shape_1", "p"]
