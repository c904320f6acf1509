"""A factor goes into the weights above it, through what only moves elements."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph.match import tensor_of
from ortopt.serialization.load import load
from ortopt.testing import check_keeps, check_rewrites, run

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


WEIGHT = "float[2,2,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}"
HALVED = WEIGHT.replace("{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}", "{0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6}")
POSITIONS = "g = GatherElements <axis = -1> (m, i) y = Div (g, c)"
POSITIONED = {
    "on the right": (f"main (float[2,S,2] x, int64[2,S,3] i) => (float[2,S,3] y) <{WEIGHT}, float c = {{2}}>", "m = MatMul (x, w)"),  # noqa: E501
    "on the left": (f"main (float[2,3,S] x, int64[2,2,S] i) => (float[2,2,S] y) <{WEIGHT}, float c = {{2}}>", "m = MatMul (w, x)"),  # noqa: E501
    "repeated": (f"main (float[4,S,2] x, int64[4,S,3] i) => (float[4,S,3] y) <{WEIGHT}, int64[3] r = {{2, 1, 1}}, float c = {{2}}>", "t = Tile (w, r) m = MatMul (x, t)"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("spelling", POSITIONED)
def test_through_gathered_positions(spelling: str) -> None:
    head, product = POSITIONED[spelling]
    after = f"{head} {{ {product} y = GatherElements <axis = -1> (m, i) }}".replace(WEIGHT, HALVED)
    shape = {"on the right": (2, 4, 3), "on the left": (2, 2, 4), "repeated": (4, 4, 3)}[spelling]
    x = {"on the right": (2, 4, 2), "on the left": (2, 3, 4), "repeated": (4, 4, 2)}[spelling]
    feeds = {"x": np.ones(x, np.float32) * 0.3, "i": np.arange(np.prod(shape)).reshape(shape) % 3}
    check_rewrites(PASS, f"{head} {{ {product} {POSITIONS} }}", after.replace(", float c = {2}", ""), inputs=feeds)
