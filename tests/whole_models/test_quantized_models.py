"""Quantized models keep their structure at every level: ONNX Runtime finds as many quantized kernels in the result.

Level 1 stores no dequantized weight and changes no scale; what ONNX Runtime fuses at load out of the original, it fuses
out of the result.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortopt import optimize
from ortopt.serialization.save import to_bytes

Array = np.ndarray[Any, Any]
RUNS = [(1, "ort"), (3, "onnx"), (3, "ort")]
QUANTIZED_OPS = frozenset({"QLinearConv", "QLinearMatMul", "MatMulInteger", "ConvInteger"})
CARRIERS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}


class Graph:
    """A quantized model in the making; every call adds a node and returns the name of its result."""

    def __init__(self, opset: int = 21) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.opset = opset
        self.random = np.random.default_rng(7)

    def constant(self, content: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(content, dtype), name))
        return name

    def packed(self, dims: tuple[int, ...], dtype: int) -> str:
        """Random integers of 4 bits."""
        name = f"c{len(self.constants)}"
        low, high = (0, 16) if dtype == TensorProto.UINT4 else (-8, 8)
        numbers = self.random.integers(low, high, dims)
        self.constants.append(helper.make_tensor(name, dtype, dims, numbers.reshape(-1).tolist()))
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def quantize(self, x: str, scale: float = 0.05, zero: int = 128, dtype: Any = np.uint8) -> str:
        return self.add("QuantizeLinear", x, self.constant(scale), self.constant(zero, dtype))

    def dequantize(self, q: str, scale: float = 0.05, zero: int = 128, dtype: Any = np.uint8) -> str:
        return self.add("DequantizeLinear", q, self.constant(scale), self.constant(zero, dtype))

    def pair(self, x: str, scale: float = 0.05, zero: int = 128, dtype: Any = np.uint8) -> str:
        return self.dequantize(self.quantize(x, scale, zero, dtype), scale, zero, dtype)

    def weight(self, *dims: int, axis: int = 0) -> str:
        """A weight of int8 with a scale for each channel, dequantized.

        Of 7 bits: beside uint8, pairs of products saturate on x86 processors without VNNI.
        """
        integers = self.constant(self.random.integers(-64, 64, dims), np.int8)
        scales = self.constant(self.random.uniform(0.005, 0.01, dims[axis]))
        return self.add("DequantizeLinear", integers, scales, self.constant(np.zeros(dims[axis]), np.int8), axis=axis)

    def layer(self, op: str, x: str, *dims: int, scale: float = 0.05, **attributes: Any) -> str:
        """A Conv or Gemm whose bias has the product of the scales of input and weight, as the kernels want it."""
        weight = self.weight(*dims)
        scales = numpy_helper.to_array(self.constants[-2])
        bias = self.constant(self.random.integers(-500, 500, dims[0]), np.int32)
        scaled = self.constant(np.float32(scale) * scales)
        dequantized = self.add("DequantizeLinear", bias, scaled, self.constant(np.zeros(dims[0]), np.int32), axis=0)
        return self.add(op, x, weight, dequantized, **attributes)

    def model(self, inputs: dict[str, tuple[Any, ...]], output: str, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
        told = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
        shape = onnx.TypeProto()
        shape.tensor_type.elem_type = dtype
        graph = helper.make_graph(
            self.nodes, "main", told, [helper.make_value_info(output, shape)], initializer=self.constants
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def qdq_convolutions() -> onnx.ModelProto:
    """Conv, Relu, MaxPool, a residual Add, pooling, Reshape, Gemm: as ONNX Runtime's static quantization has them."""
    g = Graph(opset=13)
    x = g.pair("x")
    stem = g.layer("Conv", x, 8, 3, 3, 3, pads=[1, 1, 1, 1])
    stem = g.pair(g.add("Relu", stem), zero=0)
    pooled = g.pair(g.add("MaxPool", stem, kernel_shape=[2, 2], strides=[2, 2]), zero=0)
    inner = g.pair(g.layer("Conv", pooled, 8, 8, 1, 1))
    total = g.pair(g.add("Add", inner, pooled))
    mean = g.pair(g.add("GlobalAveragePool", total))
    flat = g.pair(g.add("Reshape", mean, g.constant([0, -1], np.int64)))
    out = g.pair(g.layer("Gemm", flat, 5, 8, transB=1))
    return g.model({"x": ("N", 3, 8, 8)}, out)


def qdq_matmuls() -> onnx.ModelProto:
    """MatMul, Transpose, Reshape, Concat, Softmax, Sigmoid, Mul, Where in units; a weight behind a Transpose."""
    g = Graph(opset=17)
    x = g.pair("x")
    a = g.pair(g.add("MatMul", x, g.weight(16, 16, axis=1)))
    b = g.pair(g.add("MatMul", x, g.add("Transpose", g.weight(16, 16), perm=[1, 0])))
    turned = g.pair(g.add("Transpose", b, perm=[0, 2, 1]))
    scores = g.pair(g.add("MatMul", a, turned))
    shares = g.pair(g.add("Softmax", scores, axis=-1), scale=1 / 256, zero=0)
    mixed = g.pair(g.add("MatMul", shares, a))
    joined = g.pair(g.add("Concat", mixed, b, axis=-1))
    gate = g.pair(g.add("Sigmoid", joined), scale=1 / 256, zero=0)
    scaled = g.pair(g.add("Mul", joined, gate))
    out = g.pair(g.add("Reshape", scaled, g.constant([0, 0, 2, -1], np.int64)))
    return g.model({"x": (2, 6, 16)}, out)


def qdq_without_pairs_around_what_moves() -> onnx.ModelProto:
    """Ops that move values stand between the units, on one side without a pair: ONNX Runtime propagates."""
    g = Graph(opset=17)
    x = g.add("Transpose", g.pair("x"), perm=[0, 3, 1, 2])
    conv = g.layer("Conv", x, 8, 4, 1, 1)
    out = g.quantize(g.add("Reshape", conv, g.constant([0, 8, -1], np.int64)))
    left = g.add("Transpose", g.dequantize(out), perm=[0, 2, 1])
    product = g.pair(g.add("MatMul", left, g.weight(8, 4, axis=1)))
    return g.model({"x": (1, 6, 6, 4)}, product)


def qdq_shared() -> onnx.ModelProto:
    """One DequantizeLinear for several units, as sharing leaves it; and equal ones, one for each."""
    g = Graph(opset=17)
    q = g.quantize("x")
    one, two, three = g.dequantize(q), g.dequantize(q), g.dequantize(q)
    left = g.pair(g.add("Add", one, two))
    right = g.pair(g.add("Mul", three, three))
    out = g.pair(g.add("Add", left, right))
    return g.model({"x": ("N", 8)}, out)


def qdq_where() -> onnx.ModelProto:
    """A Where with a plain constant: ONNX Runtime gives it a DequantizeLinear of its own."""
    g = Graph(opset=17)
    chosen = g.add("Greater", "x", g.constant(0.0))
    out = g.pair(g.add("Where", chosen, g.pair("x"), g.constant(-3.0)))
    return g.model({"x": ("N", 8)}, out)


def qdq_float_bias() -> onnx.ModelProto:
    """A bias that is not quantized: ONNX Runtime quantizes it."""
    g = Graph(opset=17)
    conv = g.add("Conv", g.pair("x"), g.weight(4, 3, 1, 1), g.constant(g.random.uniform(-1, 1, 4)))
    return g.model({"x": ("N", 3, 4, 4)}, g.pair(conv))


def qdq_matmul_and_bias() -> onnx.ModelProto:
    """MatMul and Add in one unit, of rank 2."""
    g = Graph(opset=17)
    product = g.add("MatMul", g.pair("x"), g.weight(8, 8, axis=1))
    return g.model({"x": ("N", 8)}, g.pair(g.add("Add", product, g.constant(g.random.uniform(-1, 1, 8)))))


def qdq_mixed_conv() -> onnx.ModelProto:
    """Ops that other fusions would like, between units: Conv, Mul, Add, Clip; a sigmoid gate; Pad."""
    g = Graph(opset=17)
    conv = g.add("Conv", g.pair("x"), g.weight(8, 4, 1, 1))
    moved = g.add("Add", g.add("Mul", conv, g.constant(np.full((8, 1, 1), 0.5))), g.constant(np.full((8, 1, 1), 0.25)))
    clipped = g.pair(g.add("Clip", moved, g.constant(0.0), g.constant(6.0)), scale=6 / 255, zero=0)
    other = g.add("Conv", clipped, g.weight(4, 8, 3, 3), pads=[1, 1, 1, 1])
    gated = g.add("Mul", other, g.add("Sigmoid", other))
    padded = g.add("Pad", g.pair(gated), g.constant([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    return g.model({"x": (1, 4, 6, 6)}, g.pair(g.add("Conv", padded, g.weight(4, 4, 3, 3))))


def qdq_double_pairs() -> onnx.ModelProto:
    """Pairs behind one another, with equal scales and with others."""
    g = Graph(opset=17)
    x = g.pair(g.pair("x"))
    product = g.pair(g.pair(g.add("MatMul", x, g.weight(8, 8, axis=1))), scale=0.07)
    return g.model({"x": ("N", 8)}, g.pair(g.add("Sigmoid", product), 1 / 256, 0))


def qoperator() -> onnx.ModelProto:
    """Quantized ops as they are, float ops nowhere."""
    g = Graph(opset=17)
    s, z, w = (
        g.constant(0.05),
        g.constant(128, np.uint8),
        g.constant(g.random.integers(-127, 128, (4, 3, 3, 3)), np.int8),
    )
    ws, wz = g.constant(np.full(4, 0.01)), g.constant(np.zeros(4), np.int8)
    q = g.add("QuantizeLinear", "x", s, z)
    conv = g.add("QLinearConv", q, s, z, w, ws, wz, s, z, g.constant([100, -100, 3, 4], np.int32))
    flat = g.add("Reshape", conv, g.constant([0, -1], np.int64))
    m = g.constant(g.random.integers(-127, 128, (16, 4)), np.int8)
    product = g.add("QLinearMatMul", flat, s, z, m, g.constant(0.02), g.constant(0, np.int8), s, z)
    total = g.add("QLinearAdd", product, s, z, product, s, z, s, z, domain="com.microsoft")
    return g.model({"x": (2, 3, 4, 4)}, g.add("DequantizeLinear", total, s, z))


def dynamic_int8() -> onnx.ModelProto:
    """MatMulInteger as dynamic quantization writes it, one input quantized for two products, with biases."""
    g = Graph(opset=17)
    q, s, z = g.add("DynamicQuantizeLinear", "x", outputs=3)
    ways = []
    for scale in (0.01, 0.02):
        w = g.constant(g.random.integers(-127, 128, (16, 16)), np.int8)
        integers = g.add("MatMulInteger", q, w, z, g.constant(0, np.int8))
        factor = g.add("Mul", s, g.constant(scale))
        product = g.add("Mul", g.add("Cast", integers, to=1), factor)
        ways.append(g.add("Add", g.constant(g.random.uniform(-1, 1, 16)), product))
    q, s, z = g.add("DynamicQuantizeLinear", g.add("Mul", *ways), outputs=3)
    w, scales = g.constant(g.random.integers(-127, 128, (16, 8)), np.int8), g.constant(g.random.uniform(0.005, 0.01, 8))
    integers = g.add("MatMulInteger", q, w, z, g.constant(np.zeros(8), np.int8))
    out = g.add("Mul", g.add("Cast", integers, to=1), g.add("Mul", s, scales))
    return g.model({"x": (2, 5, 16)}, out)


def int8_table() -> onnx.ModelProto:
    """An embedding table of int8 that is dequantized before, and one that is behind the Gather."""
    g = Graph(opset=17)
    table = g.constant(g.random.integers(-127, 128, (50, 16)), np.int8)
    ids = g.add("Cast", g.add("Abs", "x"), to=7)
    one = g.add("Gather", g.add("DequantizeLinear", table, g.constant(0.01), g.constant(3, np.int8)), ids)
    two = g.add("DequantizeLinear", g.add("Gather", table, ids), g.constant(0.01), g.constant(3, np.int8))
    return g.model({"x": (2, 3)}, g.add("Sub", one, g.add("Relu", two)))


def matmul_nbits() -> onnx.ModelProto:
    """MatMulNBits as it is."""
    g = Graph(opset=17)
    weight = g.constant(g.random.integers(0, 256, (8, 2, 16)), np.uint8)
    scales = g.constant(g.random.uniform(0.005, 0.01, 16))
    out = g.add("MatMulNBits", "x", weight, scales, domain="com.microsoft", K=64, N=8, bits=4, block_size=32)
    return g.model({"x": (2, 3, 64)}, g.add("Add", out, g.constant(g.random.uniform(-1, 1, 8))))


def int4_blocks(
    dtype: int = TensorProto.UINT4, turned: bool = False, rows: tuple[Any, ...] = (2, 3)
) -> onnx.ModelProto:
    """A weight of 4 bits in blocks, dequantized for a MatMul; perhaps stored the other way round."""
    g = Graph()
    dims, blocks, axis = ((8, 64), (8, 2), 1) if turned else ((64, 8), (2, 8), 0)
    weight, scales = g.packed(dims, dtype), g.constant(g.random.uniform(0.05, 0.1, blocks))
    d = g.add("DequantizeLinear", weight, scales, g.packed(blocks, dtype), axis=axis, block_size=32)
    out = g.add("MatMul", "x", g.add("Transpose", d, perm=[1, 0]) if turned else d)
    return g.model({"x": (*rows, 64)}, g.add("Add", out, g.constant(g.random.uniform(-1, 1, 8))))


MODELS = {
    "qdq convolutions": qdq_convolutions,
    "qdq matmuls": qdq_matmuls,
    "qdq without pairs around what moves": qdq_without_pairs_around_what_moves,
    "qdq shared": qdq_shared,
    "qdq where": qdq_where,
    "qdq float bias": qdq_float_bias,
    "qdq MatMul and bias": qdq_matmul_and_bias,
    "qdq mixed Conv": qdq_mixed_conv,
    "qdq double pairs": qdq_double_pairs,
    "qoperator": qoperator,
    "dynamic int8": dynamic_int8,
    "int8 table": int8_table,
    "MatMulNBits": matmul_nbits,
    "uint4 blocks": int4_blocks,
    "int4 blocks": lambda: int4_blocks(TensorProto.INT4),
    "uint4 blocks, rank 2": lambda: int4_blocks(rows=("N",)),
    "uint4 blocks turned, rank 2": lambda: int4_blocks(turned=True, rows=("N",)),
    "int4 blocks turned": lambda: int4_blocks(TensorProto.INT4, turned=True),
}
"""By name: a model that somebody's tool writes."""


ROUNDED_TWICE = {"qdq double pairs": 2}
"""Nodes of pairs that round once more with another scale, which ONNX Runtime drops though the numbers change."""


NEIGHBOURS = {"qdq float bias": 1, "qdq matmuls": 2}
"""Elements in the middle between two integers, which become the other one: a bias is rounded to units of x · w, and
what is in the middle once may be the neighbour in all units behind."""

STEP = 0.0501
"""One step of such a result."""


def optimized(model: onnx.ModelProto, level: int, target: str) -> onnx.ModelProto:
    result = optimize(model, level=level, target=target, verify=False)  # type: ignore[arg-type]
    assert not result.summary.failures
    assert not result.summary.bound_reached
    first = to_bytes(result.model)
    again = optimize(first, level=level, target=target, verify=False)  # type: ignore[arg-type]
    assert [one.transformer for one in again.summary.passes] == [], "on its own result"
    assert to_bytes(again.model) == first
    return onnx.load_from_string(first)


def session(model: onnx.ModelProto, written: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if written is not None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(written)
        options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(f"{node.domain}::{node.op_type}".removeprefix("::") for node in model.graph.node)


def by_onnx_runtime(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    session(model, folder / "written.onnx")
    return ops(onnx.load(folder / "written.onnx"))


def fused(counts: Counter[str]) -> Counter[str]:
    """The ops that only a quantized unit becomes; both domains have QLinear ops."""
    named = Counter({op.rpartition("::")[2]: 0 for op in counts})
    for op, count in counts.items():
        if op in QUANTIZED_OPS or op.startswith("com.microsoft::"):
            named[op.rpartition("::")[2]] += count
    return +named


def large(tensors: Any) -> Counter[int]:
    """The sizes of the constants that are no scales and no shapes, in bytes."""
    return Counter(ir.from_proto(tensor).nbytes for tensor in tensors if np.prod(tensor.dims) >= 24)


@pytest.mark.parametrize(("level", "target"), RUNS)
@pytest.mark.parametrize("name", MODELS)
def test_units_stay_whole(name: str, level: int, target: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    made = optimized(model, level, target)
    assert sum(ops(made).values()) <= sum(ops(model).values())
    for op in CARRIERS:
        assert ops(made)[op] <= ops(model)[op]
    assert large(made.graph.initializer) == large(model.graph.initializer), "a weight is of another size"
    feeds = {
        value.name: np.random.default_rng(1)
        .uniform(-6, 6, [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim])
        .astype(np.float32)
        for value in model.graph.input
    }
    neighbours = NEIGHBOURS.get(name, 0) if (level, target) == (3, "ort") else 0
    for one, other in zip(session(model).run(None, feeds), session(made).run(None, feeds), strict=True):
        assert np.count_nonzero(one != other) <= neighbours
        np.testing.assert_allclose(one, other, rtol=0, atol=STEP if neighbours else 0)
    before, after = by_onnx_runtime(model, tmp_path), by_onnx_runtime(made, tmp_path)
    kept = ROUNDED_TWICE.get(name, 0) if (level, target) == (3, "ort") else 0
    assert sum(after.values()) <= sum(before.values()) + kept, f"{before} was before, {after} is"
    assert not fused(before) - fused(after), f"{before} was before, {after} is"
    if target == "onnx":  # other runtimes find the pairs right beside their ops
        assert not units(model) - units(made), f"{units(model)} was before, {units(made)} is"
        assert all(made_op in ops(model) for made_op in ops(made) if made_op.startswith(("com.microsoft", "QLinear")))


@pytest.mark.parametrize("one", ["ensure_unique_dq", "where_dummy_dq", "weight_bias_quantization"])
@pytest.mark.parametrize("name", MODELS)
def test_units_stay_whole_with_passes_that_are_off(name: str, one: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    made = optimize(model, level=3, enable=[one], verify=False)
    assert not made.summary.failures
    assert not made.summary.bound_reached
    first = to_bytes(made.model)
    again = optimize(first, level=3, enable=[one], verify=False)
    assert to_bytes(again.model) == first, "on its own result"
    before, after = by_onnx_runtime(model, tmp_path), by_onnx_runtime(onnx.load_from_string(first), tmp_path)
    assert not fused(before) - fused(after), f"{before} was before, {after} is"


def units(model: onnx.ModelProto) -> Counter[str]:
    """Ops all of whose floats that change are dequantized right before, and whose result is quantized right behind."""
    made_by = {output: node.op_type for node in model.graph.node for output in node.output}
    readers: dict[str, list[str]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.op_type)
    return Counter(
        node.op_type
        for node in model.graph.node
        if node.op_type in UNITS
        and {made_by.get(name) for name in node.input if name in made_by} == {"DequantizeLinear"}
        and set(readers.get(node.output[0], [])) == {"QuantizeLinear"}
    )


UNITS = frozenset({"Add", "AveragePool", "Concat", "Conv", "Gemm", "GlobalAveragePool", "MatMul", "Mul", "Sigmoid"})
