"""The number of a Where between quantized values comes from a DequantizeLinear, bit for bit."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import optimize, registry
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse, run
from tests.sessions import unoptimized
from tests.whole_models.quantized_kernels import kernels

PASS = "where_dummy_dq"
HEAD = "main (bool[N,4] c, uint8[N,4] q) => (uint8[N,4] y)"
ONE = "float s = {0.1}, uint8 z = {128}"
DEQUANTIZE, QUANTIZE = "d = DequantizeLinear (q, s, z)", "y = QuantizeLinear (w, s, z)"


@pytest.mark.parametrize("integers", ["int8", "uint8", "int16", "uint16"])
def test_the_float_comes_back_bit_for_bit(integers: str) -> None:
    random = np.random.default_rng(3)
    drawn = random.integers(0, 2**32, 60, dtype=np.uint32).view(np.float32)
    least, most = np.finfo(np.float32).smallest_normal, np.finfo(np.float32).max
    numbers = [n for n in (*drawn, least, -least, most, -most, np.float32(0)) if np.isfinite(n) and abs(n) >= least]
    for number in numbers:
        model = parse(
            f"main (bool[N,4] c, {integers}[N,4] q) => ({integers}[N,4] y) <float s = {{0.1}}, {integers} z = {{3}},"
            f" float k = {{1}}> {{ {DEQUANTIZE} w = Where (c, d, k) {QUANTIZE} }}",
            opset=21,
        )
        model.graph.initializers["k"].const_value = ir.tensor(number)
        assert run(PASS, model)[0]
        (where,) = [node for node in model.graph if node.op_type == "Where"]
        values = [value.const_value.numpy() for value in where.inputs[2].producer().inputs]  # type: ignore[union-attr]
        code, scale, zero = values
        assert (np.float32(int(code) - int(zero)) * scale).tobytes() == number.tobytes()


def test_onnx_runtime_gives_the_float_back() -> None:
    for number in (2.7, -3.1, 0.0, 3e38, -1.2e-38):
        text = f"main (bool[1] c, uint8[1] q) => (uint8[1] y) <{ONE}, float k = {{{number}}}>"
        model = parse(f"{text} {{ {DEQUANTIZE} w = Where (c, k, d) {QUANTIZE} }}")
        run(PASS, model)
        (where,) = [node for node in model.graph if node.op_type == "Where"]
        model.graph.outputs[0] = where.outputs[0]
        session = unoptimized(model)
        (got,) = session.run(None, {"c": np.array([True]), "q": np.array([9], np.uint8)})
        assert got.tobytes() == np.array([number], np.float32).tobytes()


def test_shape_of_the_number_stays() -> None:
    model = check_rewrites(
        PASS, f"{HEAD} <{ONE}, float[1,1] k = {{-2}}> {{ {DEQUANTIZE} w = Where (c, d, k) {QUANTIZE} }}"
    )
    assert [tuple(v.shape) for v in model.graph.initializers.values() if len(v.shape)] == [(1, 1)]  # type: ignore[arg-type]


def test_half_precision() -> None:
    model = parse(
        """main (bool[4] c, int8[4] q) => (int8[4] y) <float16 s = {1}, int8 z = {0}, float16 k = {1}> {
        d = DequantizeLinear (q, s, z) w = Where (c, d, k) y = QuantizeLinear (w, s, z) }""",
        opset=19,
    )
    for name, number in (("s", 0.5), ("k", -2.5)):  # the text form has no fractions of float16
        model.graph.initializers[name].const_value = ir.tensor(np.float16(number))
    check_rewrites(PASS, model, ops={"DequantizeLinear": 2})


def body(constants: str = "float k = {1}", where: str = "w = Where (c, d, k)", more: str = "") -> str:
    return f"{HEAD} <{ONE}, {constants}> {{ {DEQUANTIZE} {where} {more} {QUANTIZE} }}"


@pytest.mark.parametrize(
    ("number", "reason"),
    [(np.inf, "not finite"), (-np.inf, "not finite"), (np.nan, "not finite"), (-0.0, "negative zero")],
)
def test_keeps_numbers_that_would_not_come_back(number: float, reason: str) -> None:
    model = parse(body())
    model.graph.initializers["k"].const_value = ir.tensor(np.float32(number))
    check_keeps(PASS, model, reason)


def test_off_unless_asked_for_and_stable() -> None:
    assert registry.installed().find(PASS).enabled is False
    result = optimize(ir.to_proto(parse(body())), level=3, target="onnx", enable=[PASS], verify=False)
    assert not result.summary.bound_reached
    assert sum(node.op_type == "DequantizeLinear" for node in result.model.graph) == 2
    again = optimize(to_bytes(result.model), level=3, target="onnx", enable=[PASS], verify=False)
    assert [one.transformer for one in again.summary.passes] == []


def test_onnx_runtime_finds_as_many_kernels(tmp_path: Path) -> None:
    model = parse(body("float k = {-3}"))
    before = kernels(model, tmp_path)
    run(PASS, model)
    after = kernels(model, tmp_path)
    assert after >= before
    assert after["QLinearWhere"] == 1
