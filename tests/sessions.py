"""Sessions of ONNX Runtime on the CPU that compute a model as it is written."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime

from ortopt.serialization.save import to_bytes


def unoptimized(model: ir.Model | onnx.ModelProto | bytes | Path) -> onnxruntime.InferenceSession:
    """A session without optimizations; one thread computes, as starting more takes longer than small models do."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if isinstance(model, ir.Model):
        model = to_bytes(model)
    elif isinstance(model, onnx.ModelProto):
        model = model.SerializeToString()
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
