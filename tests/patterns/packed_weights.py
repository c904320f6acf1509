"""Products with weights of 4 bits that arithmetic unpacks, as exports of GPTQ, AWQ and HQQ write them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

DEPTH, COLUMNS = 64, 6

SPELLINGS = {
    "shift and mask": (
        ("BitShift", ["w", "four"], "h", {"direction": "RIGHT"}),
        ("BitwiseAnd", ["w", "mask"], "l", {}),
    ),
    "remainder and quotient": (("Div", ["w", "sixteen"], "h", {}), ("Mod", ["w", "sixteen"], "l", {})),
}
"""The high and the low halves of bytes."""

Step = tuple[str, list[str], str, dict[str, object]]


def packed(
    spelling: str = "shift and mask",
    *,
    op: str = "MatMul",
    zero: str = "float",
    block: int = 16,
    scatter: bool = False,
    bias: bool = False,
    turned: bool = False,
    divides: bool = False,
    rows: tuple[int | str, ...] = ("N",),
    scale_type: int = TensorProto.FLOAT,
) -> ir.Model:
    """X by a weight whose columns are rows of bytes: two integers in each, unpacked by arithmetic.

    Args:
        spelling: One of `SPELLINGS`.
        op: MatMul or Gemm.
        zero: What is subtracted: ``float`` or ``integer`` zero points, ``none``, or ``half``, which are no integers.
        block: How many inputs have a scale in common.
        scatter: Whether those are anywhere, by an index for each input.
        bias: Whether something is added.
        turned: Whether a Gemm transposes the weight, and no Transpose does.
        divides: Whether it divides by the scale.
        rows: The leading dimensions.
        scale_type: The type of the numbers.
    """
    random = np.random.default_rng(2)
    groups = DEPTH // block
    index = random.permutation(np.arange(DEPTH) % groups) if scatter else np.arange(DEPTH) // block
    kind = helper.tensor_dtype_to_np_dtype(scale_type)
    scales = random.uniform(0.05, 0.1, (COLUMNS, groups)).astype(kind)
    zeros = random.integers(0, 16, (COLUMNS, groups)) + (0.5 if zero == "half" else 0)
    inner = np.int8 if zero == "integer" else kind
    shape = (COLUMNS, DEPTH) if scatter else (COLUMNS, groups, block)
    spread = (lambda content: content[:, index]) if scatter else (lambda content: content[..., None])
    constants = {
        "w": random.integers(0, 256, (COLUMNS, DEPTH // 2)).astype(np.uint8),
        "four": np.asarray(4, np.uint8),
        "mask": np.asarray(15, np.uint8),
        "sixteen": np.asarray(16, np.uint8),
        "last": np.asarray([-1], np.int64),
        "grouped": np.asarray(shape, np.int64),
        "matrix": np.asarray((COLUMNS, DEPTH), np.int64),
        "s": spread(scales),
        "z": spread(zeros.astype(inner)),
        "c": random.standard_normal(COLUMNS).astype(kind),
    }
    steps: list[Step] = [
        *SPELLINGS[spelling],
        ("Unsqueeze", ["l", "last"], "l1", {}),
        ("Unsqueeze", ["h", "last"], "h1", {}),
        ("Concat", ["l1", "h1"], "both", {"axis": -1}),
        ("Reshape", ["both", "grouped"], "q", {}),
        *_number(zero, scale_type),
        ("Div" if divides else "Mul", ["d", "s"], "f3", {}),
        ("Reshape", ["f3", "matrix"], "f2", {}),
        *([] if turned else [("Transpose", ["f2"], "f", {"perm": [1, 0]})]),
    ]
    weight = "f2" if turned else "f"
    attributes = {"transB": 1} if turned else {}
    steps.append((op, ["x", weight, *(["c"] if bias and op == "Gemm" else [])], "t", attributes))
    steps.append(("Add", ["t", "c"], "y", {}) if bias and op == "MatMul" else ("Identity", ["t"], "y", {}))
    nodes = [helper.make_node(kind, operands, [result], **more) for kind, operands, result, more in steps]
    x = helper.make_tensor_value_info("x", scale_type, [*rows, DEPTH])
    y = helper.make_tensor_value_info("y", scale_type, [*rows, COLUMNS])
    read = {name for node in nodes for name in node.input}
    given = [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items() if name in read]
    graph = helper.make_graph(nodes, "main", [x], [y], given)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ir.from_proto(proto)


def _number(zero: str, kind: int) -> list[Step]:
    """From unpacked integers q to numbers d."""
    if zero == "none":
        return [("Cast", ["q"], "d", {"to": kind})]
    if zero == "integer":
        return [
            ("Cast", ["q"], "q8", {"to": TensorProto.INT8}),
            ("Sub", ["q8", "z"], "q0", {}),
            ("Cast", ["q0"], "d", {"to": kind}),
        ]
    return [("Cast", ["q"], "q0", {"to": kind}), ("Sub", ["q0", "z"], "d", {})]
