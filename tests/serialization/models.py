"""Models that the tests of files in and out share."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

WEIGHT = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
CONSTANT = WEIGHT[::-1].copy()


def text(body: str, *, ir_version: int = 8, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]> {body}')


def model(nodes: list[onnx.NodeProto], **fields: object) -> onnx.ModelProto:
    """A model from x to y, of unknown shapes."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        **fields,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights() -> onnx.ModelProto:
    """Large weights in an initializer, a Constant, both branches of an If, and a function."""
    branches = [
        helper.make_graph(
            [helper.make_node("MatMul", ["t", "v"], [f"{name}_y"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", onnx.TensorProto.FLOAT, None)],
            [numpy_helper.from_array(WEIGHT + index, "v")],
        )
        for index, name in enumerate(("then", "else"))
    ]
    result = model(
        [
            helper.make_node("MatMul", ["x", "w"], ["s"]),
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(CONSTANT, "c")),
            helper.make_node("MatMul", ["s", "c"], ["t"]),
            helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True), "yes")),
            helper.make_node("If", ["yes"], ["u"], then_branch=branches[0], else_branch=branches[1]),
            helper.make_node("F", ["u"], ["y"], domain="local"),
        ],
        initializer=[numpy_helper.from_array(WEIGHT, "w")],
    )
    result.opset_import.append(helper.make_opsetid("local", 1))
    result.functions.append(
        helper.make_function(
            "local",
            "F",
            ["a"],
            ["b"],
            [
                helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(CONSTANT * 2, "k")),
                helper.make_node("MatMul", ["a", "k"], ["b"]),
            ],
            [helper.make_opsetid("", 17)],
        )
    )
    return result


def nested_ifs(depth: int) -> onnx.ModelProto:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["r0"])], "b0", [], [helper.make_tensor_value_info("r0", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["e"])], "e", [], [helper.make_tensor_value_info("e", 1, None)]
    )
    for level in range(1, depth + 1):
        inner = helper.make_graph(
            [helper.make_node("If", ["c"], [f"r{level}"], then_branch=inner, else_branch=inner)]
            if level == 1
            else [helper.make_node("If", ["c"], [f"r{level}"], then_branch=inner, else_branch=other)],
            f"b{level}",
            [],
            [helper.make_tensor_value_info(f"r{level}", 1, None)],
        )
    inner.input.extend([helper.make_tensor_value_info("x", 1, None), helper.make_tensor_value_info("c", 9, [])])
    return helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def canonical(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model without fields that hold the empty string, which is what they mean when they are not there."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for imports in (result.opset_import, *(function.opset_import for function in result.functions)):
        for entry in imports:
            if not entry.domain:
                entry.ClearField("domain")
    return result
