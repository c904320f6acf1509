"""What ONNX Runtime computes on this processor that it does not compute on others."""

from __future__ import annotations

import functools

import numpy as np
import onnx


@functools.cache
def saturates() -> bool:
    """Whether kernels of uint8 by int8 add pairs of products in 16 bits, and cut them off: x86 without VNNI does."""
    import onnxruntime

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (uint8[1,4] a, int8[4,1] b) => (int32[1,1] y) { y = MatMulInteger (a, b) }"""
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"a": np.full((1, 4), 255, np.uint8), "b": np.full((4, 1), 127, np.int8)})
    return int(np.asarray(result)[0, 0]) != 4 * 255 * 127
