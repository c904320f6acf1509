"""Which quantized kernels ONNX Runtime finds in a model when it optimizes it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from ortopt.serialization.save import to_bytes

CARRIERS = {"QuantizeLinear"}


def kernels(model: ir.Model, folder: Path) -> Counter[str]:
    """The ops that only a quantized unit becomes, by type, after ORT_ENABLE_ALL."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(folder / "written.onnx")
    ort.InferenceSession(to_bytes(model), options, ["CPUExecutionProvider"])
    written = onnx.load(folder / "written.onnx")
    return Counter(
        node.op_type for node in written.graph.node if node.op_type.startswith("Q") and node.op_type not in CARRIERS
    )
