"""A product with a weight of few bits in blocks becomes one kernel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortopt.errors import UsageError
from ortopt.options import Options
from ortopt.registry import installed
from ortopt.testing import check_keeps, check_rewrites, run
from ortopt.transformer import GraphTransformer
from tests.passes.quantized_units import run as outputs_of

PASS = "matmul_nbits_fusion"
KERNEL = "com.microsoft::MatMulNBits"
TYPES = {
    "uint4": (TensorProto.UINT4, 0, 16),
    "int4": (TensorProto.INT4, -8, 8),
    "uint8": (TensorProto.UINT8, 0, 256),
    "int8": (TensorProto.INT8, -128, 128),
    "uint16": (TensorProto.UINT16, 0, 2**16),
}


def model(
    dtype: str = "uint4",
    op: str = "MatMul",
    *,
    rows: tuple[int | str, ...] = (5,),
    depth: int = 96,
    columns: int = 3,
    block: int = 32,
    zeros: bool = True,
    by_columns: bool = True,
    turned: bool = False,
    bias: str = "",
    numbers: int = TensorProto.FLOAT,
    **attributes: object,
) -> ir.Model:
    """X by a weight that is stored as [depth, columns], or transposed where it is `turned` or the Gemm does so."""
    random = np.random.default_rng(1)
    kind, low, high = TYPES[dtype]
    stored_turned = turned or bool(attributes.get("transB"))
    dims = (columns, depth) if stored_turned else (depth, columns)
    axis = int(stored_turned) if by_columns else 1 - int(stored_turned)
    scale_dims = tuple(-(-size // block) if index == axis else size for index, size in enumerate(dims))
    scales = random.uniform(0.05, 0.1, scale_dims).astype(helper.tensor_dtype_to_np_dtype(numbers))
    constants = [
        helper.make_tensor("w", kind, dims, random.integers(low, high, dims).reshape(-1).tolist()),
        numpy_helper.from_array(scales, "s"),
    ]
    if zeros:
        content = random.integers(low, high, scale_dims).reshape(-1).tolist()
        constants.append(helper.make_tensor("z", kind, scale_dims, content))
    if bias:
        content = random.uniform(-1, 1, columns if bias == "vector" else (1, columns)).astype(scales.dtype)
        constants.append(numpy_helper.from_array(content, "c"))
    end = ["t" if bias and op == "MatMul" else "y"]
    operands = ["x", "e" if turned else "d", *(["c"] if bias and op == "Gemm" else [])]
    given = ["w", "s", *(["z"] if zeros else [])]
    nodes = [
        helper.make_node("DequantizeLinear", given, ["d"], axis=axis, block_size=block),
        *([helper.make_node("Transpose", ["d"], ["e"], perm=[1, 0])] if turned else []),
        helper.make_node(op, operands, end, **attributes),
        *([helper.make_node("Add", ["c", "t"], ["y"])] if bias and op == "MatMul" else []),
    ]
    x = helper.make_tensor_value_info("x", numbers, [*rows, depth])
    y = helper.make_tensor_value_info("y", numbers, [*rows, columns])
    graph = helper.make_graph(nodes, "main", [x], [y], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ir.from_proto(proto)


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("dtype", ["uint4", "int4", "uint8", "int8"])
def test_types(dtype: str, zeros: bool) -> None:
    check_rewrites(PASS, model(dtype, zeros=zeros), ops={KERNEL: 1, "MatMul": 0, "DequantizeLinear": 0})


@pytest.mark.parametrize("block", [16, 64, 256])
def test_block_sizes(block: int) -> None:
    check_rewrites(PASS, model(depth=512, block=block), ops={KERNEL: 1})


@pytest.mark.parametrize("rows", [(0,), (1,), ("N",), (2, 3), ("N", 1, 2)])
def test_rows(rows: tuple[int | str, ...]) -> None:
    check_rewrites(PASS, model(rows=rows), ops={KERNEL: 1})


@pytest.mark.parametrize("dtype", ["uint4", "int8"])
def test_stored_transposed(dtype: str) -> None:
    check_rewrites(PASS, model(dtype, turned=True), ops={KERNEL: 1, "Transpose": 0})
    check_rewrites(PASS, model(dtype, "Gemm", transB=1), ops={KERNEL: 1, "Gemm": 0})


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_with_a_bias(op: str) -> None:
    check_rewrites(PASS, model(op=op, bias="vector"), ops={KERNEL: 1, "Add": 0, "Gemm": 0})


def test_what_is_added_and_no_bias_stays() -> None:
    check_rewrites(PASS, model(bias="row"), ops={KERNEL: 1, "Add": 1})


def test_special_numbers() -> None:
    x = np.ones((5, 96), np.float32)
    x[0, 3], x[1, 4], x[2] = np.nan, np.inf, 1e30
    result = check_rewrites(PASS, model())
    (wanted,), (got,) = outputs_of(model(), {"x": x}), outputs_of(result, {"x": x})
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "because"),
    [
        ({"block": 8}, "blocks of 16, 32, 64"),
        ({"block": 48}, "blocks of 16, 32, 64"),
        ({"depth": 80}, "the last block is not whole"),
        ({"by_columns": False, "columns": 32}, "along the result"),
        ({"dtype": "uint16"}, "of so many bits"),
        ({"numbers": TensorProto.FLOAT16}, "single precision only"),
        ({"rows": ()}, "a vector"),
        ({"op": "Gemm", "alpha": 0.5}, "it scales or transposes"),
        ({"op": "Gemm", "bias": "vector", "beta": 0.5}, "the bias is scaled"),
        ({"op": "Gemm", "bias": "row"}, "no number for each column"),
    ],
)
def test_keeps(given: dict[str, object], because: str) -> None:
    check_keeps(PASS, model(**given), because=because)  # type: ignore[arg-type]


def test_keeps_a_weight_that_others_read() -> None:
    shared = model()
    shared.graph.outputs.append(_dequantized(shared))
    check_keeps(PASS, shared, because="others read the floats")


def _dequantized(of: ir.Model) -> ir.Value:
    value = next(node for node in of.graph if node.op_type == "DequantizeLinear").outputs[0]
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([96, 3])
    return value


def test_only_for_onnx_runtime() -> None:
    check_keeps(PASS, model(), target="onnx")


def _changes(given: ir.Model, transformer: str | GraphTransformer = PASS) -> bool:
    return run(transformer, given, options=Options())[0]


def test_what_onnx_runtime_does_at_load_is_left_to_it() -> None:
    """Its kernel rounds activations to 8 bits, and is faster for it."""
    assert not _changes(model())
    assert not _changes(model(op="Gemm"))
    assert _changes(model(op="Gemm", transB=1))
    assert _changes(model(turned=True))


def test_accuracy_level() -> None:
    kind = installed().find(PASS)
    asked = model()
    assert _changes(asked, kind(accuracy_level=4))
    (node,) = asked.graph
    assert node.attributes["accuracy_level"].as_int() == 4
    with pytest.raises(UsageError, match="accuracy_level is one of"):
        kind(accuracy_level=3)
