"""With --target onnx, quantized units stay in the form that other runtimes match."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

import ortopt
from ortopt.patterns.quantization import is_dequantizer, is_quantizer
from ortopt.testing import parse

UNITS = ("Add", "Conv", "Flatten", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool", "Reshape", "Transpose")

NETWORK = """main (float[1,3,8,8] x) => (float[1,4] y) <{dtype} z = {{3}}, {dtype} o = {{0}}, float a = {{0.1}},
    float b = {{0.2}}, float s = {{0.01}}, float p = {{0.001}}, int8 i = {{0}}, int32 j = {{0}}, {weights}> {{
    xq = QuantizeLinear (x, a, z) xd = DequantizeLinear (xq, a, z)
    w1 = DequantizeLinear (v1, s, i) b1 = DequantizeLinear (c1, p, j)
    t1 = Conv <pads = [1, 1, 1, 1]> (xd, w1, b1) r1 = Relu (t1)
    q1 = QuantizeLinear (r1, b, o) d1 = DequantizeLinear (q1, b, o)
    m1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d1)
    q2 = QuantizeLinear (m1, b, o) d2 = DequantizeLinear (q2, b, o) e2 = DequantizeLinear (q2, b, o)
    w2 = DequantizeLinear (v2, s, i)
    t2 = Conv <pads = [1, 1, 1, 1]> (d2, w2)
    q3 = QuantizeLinear (t2, a, z) d3 = DequantizeLinear (q3, a, z)
    t3 = Add (d3, e2) q4 = QuantizeLinear (t3, b, z) d4 = DequantizeLinear (q4, b, z)
    g1 = GlobalAveragePool (d4) q5 = QuantizeLinear (g1, b, z) d5 = DequantizeLinear (q5, b, z)
    f1 = Flatten (d5) q6 = QuantizeLinear (f1, b, z) d6 = DequantizeLinear (q6, b, z)
    w3 = DequantizeLinear (v3, s, i)
    k3 = Transpose <perm = [1, 0]> (w3)
    t4 = MatMul (d6, k3) q7 = QuantizeLinear (t4, a, z) y = DequantizeLinear (q7, a, z)
}}"""


def network(dtype: str) -> ir.Model:
    random = np.random.default_rng(0)

    def drawn(name: str, *dims: int, kind: str = "int8") -> str:
        numbers = ", ".join(map(str, random.integers(-100, 100, int(np.prod(dims))).tolist()))
        return f"{kind}[{','.join(map(str, dims))}] {name} = {{{numbers}}}"

    weights = drawn("v1", 4, 3, 3, 3), drawn("c1", 4, kind="int32"), drawn("v2", 4, 4, 3, 3), drawn("v3", 4, 4)
    return parse(NETWORK.format(dtype=dtype, weights=", ".join(weights)), 21)


def pairs(model: ir.Model) -> Counter[tuple[bytes, ...]]:
    """The scale and the zero point of each QuantizeLinear that stands right before a DequantizeLinear."""
    found: Counter[tuple[bytes, ...]] = Counter()
    for node in model.graph:
        source = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if source is None or not is_dequantizer(node):
            continue
        assert is_quantizer(source), f"{node.name} dequantizes what {source.op_type} gives"
        assert parameters(source) == parameters(node), "one edge has two scales"
        found[parameters(node)] += 1
    return found


def parameters(node: ir.Node) -> tuple[bytes, ...]:
    constants = [value.const_value for value in node.inputs[1:] if value is not None]
    assert all(constant is not None for constant in constants)
    return tuple(constant.tobytes() for constant in constants if constant is not None)


def units(model: ir.Model) -> Counter[str]:
    """The ops whose first operand is dequantized and whose result is quantized, perhaps behind a Relu."""
    return Counter(
        node.op_type
        for node in model.graph
        if node.op_type in UNITS
        and is_dequantizer(node.inputs[0].producer() if node.inputs[0] is not None else None)
        and all(is_quantizer(use.node) or use.node.op_type == "Relu" for use in node.outputs[0].uses())
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
def test_units_and_scales_stay(dtype: str) -> None:
    original = network(dtype)
    result = ortopt.optimize(original, target="onnx", verify=False).model
    assert pairs(result) == pairs(original)
    assert units(result) == units(original)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_nothing_is_dequantized_and_each_op_has_pairs_of_its_own(dtype: str) -> None:
    result = ortopt.optimize(network(dtype), target="onnx", verify=False).model
    floats = [value for value in result.graph.initializers.values() if value.dtype == ir.DataType.FLOAT]
    assert all(value.const_value is not None and value.const_value.size == 1 for value in floats)
    assert all(len(node.outputs[0].uses()) <= 1 for node in result.graph if is_dequantizer(node))
