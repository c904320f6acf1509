"""Each user of a DequantizeLinear gets one of its own."""

from pathlib import Path

import onnx_ir as ir

from ortopt import optimize, registry
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse, run
from tests.whole_models.quantized_kernels import kernels

PASS = "ensure_unique_dq"
ONE = "float s = {0.1}, uint8 z = {3}"
PAIR = "{0}p = QuantizeLinear ({0}, s, z) {1} = DequantizeLinear ({0}p, s, z)"
UNITS = f"""main (float[N,8] x) => (uint8[N,8] y) <{ONE}> {{
    q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
    a = Sigmoid (d) {PAIR.format("a", "b")}
    c = Mul (d, b) {PAIR.format("c", "e")}
    f = Add (d, e) y = QuantizeLinear (f, s, z) }}"""


def test_two_users() -> None:
    model = check_rewrites(
        PASS,
        f"main (uint8[N,4] q) => (float[N,4] a, float[N,4] b) <{ONE}> "
        "{ d = DequantizeLinear (q, s, z) a = Relu (d) b = Tanh (d) }",
        after="d = DequantizeLinear (q, s, z) e = DequantizeLinear (q, s, z) a = Relu (d) b = Tanh (e)",
    )
    assert len(model.graph.initializers) == 2, "scale and zero point are shared"


def test_a_weight_is_not_copied() -> None:
    model = check_rewrites(
        PASS,
        """main (float[N,2] x, float[N,2] v) => (float[N,2] a, float[N,2] b)
        <int8[2,2] w = {1,2,3,4}, float[2] s = {0.1, 0.2}> {
            d = DequantizeLinear <axis = 0> (w, s) a = MatMul (x, d) b = MatMul (v, d) }""",
        ops={"DequantizeLinear": 2},
    )
    assert len(model.graph.initializers) == 2


def test_off_unless_asked_for_and_the_same_again() -> None:
    assert registry.installed().find(PASS).enabled is False
    off = optimize(ir.to_proto(parse(UNITS)), level=3, target="onnx", verify=False)
    assert sum(node.op_type == "DequantizeLinear" for node in off.model.graph) == 3
    first = optimize(ir.to_proto(parse(UNITS)), level=3, target="onnx", enable=[PASS], verify=False)
    assert not first.summary.bound_reached
    assert sum(node.op_type == "DequantizeLinear" for node in first.model.graph) == 5
    again = optimize(to_bytes(first.model), level=3, target="onnx", enable=[PASS], verify=False)
    assert not again.summary.bound_reached
    assert to_bytes(again.model) == to_bytes(first.model)


def test_onnx_runtime_finds_as_many_kernels(tmp_path: Path) -> None:
    model = parse(UNITS)
    before = kernels(model, tmp_path)
    run(PASS, model)
    assert kernels(model, tmp_path) >= before
    assert before, "the model has no unit"
