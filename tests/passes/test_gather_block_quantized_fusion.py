"""A table of 4 bits in blocks is dequantized where it is gathered."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.quantized_units import run

PASS = "gather_block_quantized_fusion"
KERNEL = "com.microsoft::GatherBlockQuantized"
TYPES = {
    "uint4": (TensorProto.UINT4, 0, 16),
    "int4": (TensorProto.INT4, -8, 8),
    "uint8": (TensorProto.UINT8, 0, 256),
}


def model(
    dtype: str = "uint4",
    *,
    indices: tuple[int | str, ...] = (2, 3),
    dims: tuple[int, int] = (10, 64),
    block: int = 32,
    zeros: bool = True,
    axis: int = 0,
    along: int = 1,
    numbers: int = TensorProto.FLOAT,
    integers: int = TensorProto.INT64,
    show_table: bool = False,
) -> ir.Model:
    random = np.random.default_rng(1)
    kind, low, high = TYPES[dtype]
    scale_dims = tuple(size // block if index == along else size for index, size in enumerate(dims))
    scales = random.uniform(0.05, 0.1, scale_dims).astype(helper.tensor_dtype_to_np_dtype(numbers))
    constants = [
        helper.make_tensor("w", kind, dims, random.integers(low, high, dims).reshape(-1).tolist()),
        numpy_helper.from_array(scales, "s"),
    ]
    if zeros:
        content = random.integers(low, high, scale_dims).reshape(-1).tolist()
        constants.append(helper.make_tensor("z", kind, scale_dims, content))
    given = ["w", "s", *(["z"] if zeros else [])]
    nodes = [
        helper.make_node("DequantizeLinear", given, ["d"], axis=along, block_size=block),
        helper.make_node("Gather", ["d", "i"], ["y"], axis=axis),
    ]
    shape = [*indices, dims[1]] if axis in (0, -2) else [dims[0], *indices]
    outputs = [helper.make_tensor_value_info("y", numbers, shape)]
    if show_table:
        outputs.append(helper.make_tensor_value_info("d", numbers, dims))
    inputs = [helper.make_tensor_value_info("i", integers, indices)]
    graph = helper.make_graph(nodes, "main", inputs, outputs, constants)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("dtype", ["uint4", "int4"])
@pytest.mark.parametrize("integers", [TensorProto.INT64, TensorProto.INT32])
def test_bits_stay(dtype: str, zeros: bool, integers: int) -> None:
    given = model(dtype, zeros=zeros, integers=integers)
    result = check_rewrites(PASS, given, ops={KERNEL: 1, "Gather": 0, "DequantizeLinear": 0})
    i = np.array([[0, 9, -1], [-10, 4, 4]], np.int64 if integers == TensorProto.INT64 else np.int32)
    original = model(dtype, zeros=zeros, integers=integers)
    np.testing.assert_array_equal(run(original, {"i": i})[0], run(result, {"i": i})[0])


@pytest.mark.parametrize("indices", [(), (0,), ("N",), (1, "N", 2)])
@pytest.mark.parametrize("block", [16, 64])
def test_sizes(indices: tuple[int | str, ...], block: int) -> None:
    check_rewrites(PASS, model(indices=indices, block=block, axis=-2), ops={KERNEL: 1})


@pytest.mark.parametrize(
    ("given", "because"),
    [
        ({"axis": 1}, "gathers along the blocks"),
        ({"axis": 1, "along": 0, "dims": (64, 10)}, "not lie along the last axis"),
        ({"block": 8}, "blocks of 16, 32, 64"),
        ({"dtype": "uint8"}, "not of 4 bits"),
        ({"numbers": TensorProto.FLOAT16}, "single precision only"),
        ({"show_table": True}, "others read the whole table"),
    ],
)
def test_keeps(given: dict[str, object], because: str) -> None:
    check_keeps(PASS, model(**given), because=because)  # type: ignore[arg-type]


def test_only_for_onnx_runtime() -> None:
    check_keeps(PASS, model(), target="onnx")
