"""Float weights and biases of quantized units become dequantized integers, each within half of its step."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import optimize, registry
from ortopt.options import Numerics
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.sessions import unoptimized
from tests.whole_models.quantized_kernels import kernels

PASS = "weight_bias_quantization"
STEP = 0.05
ONE = f"float s = {{{STEP}}}, uint8 z = {{128}}"
Array = np.ndarray

FLOAT_UNITS = {
    "Conv": ("N,3,4,4", "Conv (d, w, b)", (5, 3, 1, 1), 5, 0),
    "Conv in groups": ("N,4,4,4", "Conv <group = 2> (d, w, b)", (6, 2, 3, 3), 6, 0),
    "Conv without a bias": ("N,3,4,4", "Conv (d, w)", (5, 3, 1, 1), 0, 0),
    "ConvTranspose": ("N,3,4,4", "ConvTranspose (d, w, b)", (3, 5, 2, 2), 5, None),
    "Gemm": ("N,6", "Gemm (d, w, b)", (6, 4), 4, 1),
    "Gemm turned": ("N,6", "Gemm <transB = 1> (d, w, b)", (4, 6), 4, 0),
    "MatMul": ("N,2,6", "MatMul (d, w)", (6, 4), 0, 1),
    "MatMul of rank 3": ("2,2,6", "MatMul (d, w)", (2, 6, 4), 0, None),
}


def literal(content: Array) -> str:
    return "{" + ", ".join(repr(float(item)) for item in content.reshape(-1)) + "}"


def unit(name: str, seed: int = 1) -> tuple[str, Array, Array]:
    dims, op, shape, length, _ = FLOAT_UNITS[name]
    random = np.random.default_rng(seed)
    w = random.normal(size=shape).astype(np.float32)
    b = random.normal(size=length).astype(np.float32)
    out = ",".join("ABCD"[: len(dims.split(","))])
    constants = f"float[{','.join(map(str, shape))}] w = {literal(w)}"
    constants += f", float[{length}] b = {literal(b)}" if length else ""
    text = f"""main (float[{dims}] x) => (uint8[{out}] y) <{ONE}, {constants}> {{
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) r = {op} y = QuantizeLinear (r, s, z) }}"""
    return text, w, b


def content(value: ir.Value | None) -> tuple[list[Array], int]:
    """Integers, scale and zero point behind a value, and the axis of the scales."""
    node = None if value is None else value.producer()
    assert node is not None and node.op_type == "DequantizeLinear"
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    return [one.const_value.numpy() for one in node.inputs], axis  # type: ignore[union-attr]


def dequantized(parts: list[Array], axis: int) -> tuple[Array, Array]:
    """In float64: the numbers that integers stand for, and the step around each."""
    integers, scale, zero = parts
    assert not zero.any() and zero.dtype == integers.dtype and zero.shape == scale.shape
    dims = [-1 if index == axis else 1 for index in range(integers.ndim)] if scale.ndim else []
    step = np.broadcast_to(scale.astype(np.float64).reshape(dims), integers.shape)
    return integers * step, step


def outputs(model: ir.Model, feeds: dict[str, Array]) -> Array:
    """What ONNX Runtime computes before the last QuantizeLinear, in floats."""
    return unoptimized(model).run(None, feeds)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", FLOAT_UNITS)
def test_units(name: str, tmp_path: Path) -> None:
    text, w, b = unit(name)
    axis = FLOAT_UNITS[name][4]
    model = check_rewrites(PASS, text, ops={"DequantizeLinear": 3 if b.size else 2}, numbers=False)
    (op,) = [node for node in model.graph if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    parts, of = content(op.inputs[1])
    assert parts[0].dtype == np.int8 and parts[0].min() >= -127 and abs(parts[0].astype(int)).max() == 127
    assert parts[1].shape == (() if axis is None else (w.shape[axis],))
    assert axis is None or of == axis
    near, step = dequantized(parts, of)
    # Rounding to a grid is off by half a step; the quotient's own rounding by 127 units in the last place of 1.
    assert np.all(np.abs(near - w) <= step * (0.5 + 127 * 2.0**-23))
    per_bias = np.zeros(1)
    if b.size:
        biases, at = content(op.inputs[2])
        assert biases[0].dtype == np.int32
        np.testing.assert_array_equal(biases[1], np.float32(STEP) * parts[1])
        near_bias, per_bias = dequantized(biases, at)
        assert np.all(np.abs(near_bias - b) <= per_bias / 2)
    # |sum x (w' - w) + (b' - b)| <= sum |x| * s_w / 2 + s_b / 2, with |x| <= 128 steps, and floats that round on the
    # way; then both are rounded to the result's grid: half a step each.
    random = np.random.default_rng(5)
    dims = [{"N": 2}.get(dim) or int(dim) for dim in FLOAT_UNITS[name][0].split(",")]
    feeds = {"x": random.uniform(-6, 6, dims).astype(np.float32)}
    terms = w.size / (w.shape[0] if name.startswith("Conv") and "Transpose" not in name else w.shape[-1])
    bound = terms * 128 * STEP * parts[1].max() / 2 + per_bias.max() / 2 + STEP * (1 + 1e-4)
    one, other = (outputs(each, feeds).astype(np.float64) * STEP for each in (parse(text), model))
    assert np.abs(one - other).max() <= bound
    if name != "ConvTranspose":
        assert np.abs(one - other).max() <= 5 * STEP, "far below the worst case"
    before, after = kernels(parse(text), tmp_path), kernels(model, tmp_path)
    assert after >= before
    kernel = {"Gemm": "QGemm", "MatMul": "QLinearMatMul", "Conv": "QLinearConv"}.get(name.partition(" ")[0])
    assert after.total() == (kernel is not None) == after[kernel or ""]


def with_weight(op: str = "Conv (d, v, b)", scale: str = "0.01", bias: str = "{1, -2, 3}", more: str = "") -> str:
    several = "," in scale
    return f"""main (float[N,3,4,4] x) => (uint8[A,B,C,D] y) <{ONE}, int8[3,3,1,1] w = {{1,2,3,4,5,6,7,8,9}},
        float{"[3]" if several else ""} t = {{{scale}}}, float[3] b = {bias}> {{
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear <axis = 0> (w, t)
        r = {op} {more} y = QuantizeLinear (r, s, z) }}"""


@pytest.mark.parametrize("scale", ["0.01", "0.01, 0.02, 0.03"])
def test_only_the_bias(scale: str, tmp_path: Path) -> None:
    model = check_rewrites(PASS, with_weight(scale=scale), ops={"DequantizeLinear": 3}, numbers=False)
    (conv,) = [node for node in model.graph if node.op_type == "Conv"]
    (integers, scales, _), _ = content(conv.inputs[2])
    of_weight = np.array(scale.split(", "), np.float32)
    np.testing.assert_array_equal(scales, np.float32(STEP) * of_weight.reshape(np.shape(scales)))
    np.testing.assert_array_equal(integers, np.rint(np.array([1, -2, 3]) / scales.astype(np.float64)))
    assert kernels(model, tmp_path)["QLinearConv"] == 1
    assert kernels(model, tmp_path) >= kernels(parse(with_weight(scale=scale)), tmp_path)


def test_a_weight_of_zeros_stays_zero() -> None:
    text, w, _ = unit("Gemm")
    model = check_rewrites(PASS, text.replace(literal(w), literal(w * 0)), numbers=False)
    (gemm,) = [node for node in model.graph if node.op_type == "Gemm"]
    (integers, scale, _), _ = content(gemm.inputs[1])
    assert not integers.any() and np.all(scale == 1)


def test_a_shared_weight_keeps_its_other_user() -> None:
    text, w, _ = unit("MatMul")
    shared = text.replace("uint8[A,B,C] y)", "uint8[A,B,C] y, float[6,4] v)").replace(
        "r = MatMul", "v = Neg (w) r = MatMul"
    )
    model = check_rewrites(PASS, shared, ops={"DequantizeLinear": 2}, numbers=False)
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), w)  # type: ignore[union-attr]


def matmul(weight: str = "float[2,2] w = {1,2,3,4}", body: str = "", output: str = "", head: str = "") -> str:
    body = body or "d = DequantizeLinear (q, s, z) m = MatMul (d, w) y = QuantizeLinear (m, s, z)"
    return f"main (uint8[2,2] q{head}) => (uint8[2,2] y{output}) <{ONE}{', ' + weight if weight else ''}> {{ {body} }}"


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_keeps_what_is_not_finite(number: float) -> None:
    model = parse(matmul())
    model.graph.initializers["w"].const_value = ir.tensor(np.array([[1, 2], [number, 4]], np.float32))
    check_keeps(PASS, model, "not finite")
    model = parse(with_weight())
    model.graph.initializers["b"].const_value = ir.tensor(np.array([1, number, 4], np.float32))
    check_keeps(PASS, model, "not finite")


def test_one_scale_before_opset_13() -> None:
    model = check_rewrites(PASS, unit("Conv")[0], numbers=False, opset=11)
    (conv,) = [node for node in model.graph if node.op_type == "Conv"]
    assert content(conv.inputs[1])[0][1].shape == ()


def test_off_unless_asked_for_and_stable() -> None:
    assert registry.installed().find(PASS).numerics is Numerics.APPROXIMATE
    model = ir.to_proto(parse(unit("Conv")[0]))
    kept = optimize(model, level=3, target="onnx", verify=False)
    assert sum(node.op_type == "DequantizeLinear" for node in kept.model.graph) == 1
    result = optimize(model, level=3, target="onnx", enable=[PASS], verify=False)
    assert not result.summary.bound_reached
    assert sum(node.op_type == "DequantizeLinear" for node in result.model.graph) == 3
    again = optimize(to_bytes(result.model), level=3, target="onnx", enable=[PASS], verify=False)
    assert [one.transformer for one in again.summary.passes] == []
    assert to_bytes(again.model) == to_bytes(result.model)
