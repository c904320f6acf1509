"""A factor goes into the weights above it, through what only moves elements."""

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import tensor_of
from ortopt.serialization.load import load
from ortopt.testing import check_keeps, run

PASS = "scale_folding"


def test_keeps_large_weights_that_are_shared() -> None:
    numbers = ", ".join(["1"] * 72 * 64)
    text = f"""main (float[N,72] x) => (float[N,64] y, float[N,64] z) <float[72,64] w = {{{numbers}}}, float c = {{4}}> {{
        m = MatMul (x, w) y = Mul (m, c) z = MatMul (x, w) }}"""  # noqa: E501
    check_keeps(PASS, text, "used elsewhere")


def test_bfloat16_that_is_not_folded() -> None:
    w = ir.Value(name="w", const_value=ir.tensor([[1, 2], [3, 4]], dtype=ir.DataType.BFLOAT16))
    c = ir.Value(name="c", const_value=ir.tensor(4, dtype=ir.DataType.BFLOAT16))
    product = ir.node("MatMul", [w, w])
    scaled = ir.node("Mul", [product.outputs[0], c])
    scaled.outputs[0].name, product.outputs[0].name = "y", "m"
    scaled.outputs[0].dtype, scaled.outputs[0].shape = ir.DataType.BFLOAT16, ir.Shape([2, 2])
    graph = ir.Graph([], scaled.outputs, nodes=[product, scaled], initializers=[w, c], opset_imports={"": 17}, name="g")
    model = load(ir.Model(graph, ir_version=10))
    changed, _ = run(PASS, model)
    assert changed
    (left,) = model.graph
    one, other = (np.asarray(tensor_of(value).numpy(), np.float32) for value in left.inputs)
    assert one.tolist() == [[1, 2], [3, 4]]
    assert other.tolist() == [[4, 8], [12, 16]]
