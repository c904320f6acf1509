"""What ONNX Runtime computes on this processor that it does not compute on others."""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import TensorProto, helper


@functools.cache
def saturates() -> bool:
    """Whether kernels of uint8 by int8 add pairs of products in 16 bits, and cut them off: x86 without VNNI does."""
    import onnxruntime

    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.UINT8, [1, 4]),
        helper.make_tensor_value_info("b", TensorProto.INT8, [4, 1]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 1])]
    graph = helper.make_graph([node], "main", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"a": np.full((1, 4), 255, np.uint8), "b": np.full((4, 1), 127, np.int8)})
    return int(np.asarray(result)[0, 0]) != 4 * 255 * 127
