"""A model in other data types, by ONNX Runtime's own tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import onnx.version_converter


def half(source: Path, target: Path) -> None:
    """Weights and values of 16 bits; inputs and outputs keep 32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.shape_inference.infer_shapes(onnx.load(source))
    onnx.save(convert_float_to_float16(model, keep_io_types=True), target)


def dynamic_int8(source: Path, target: Path) -> None:
    """Matrix products of 8-bit integers, with scales found while it runs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QUInt8, op_types_to_quantize=["MatMul", "Gemm"])


def _four_bits(model: onnx.ModelProto, target: Path, form: str) -> None:
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, quant_format=QuantFormat[form])
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


def matmul_nbits(source: Path, target: Path) -> None:
    """Weights of 4 bits inside MatMulNBits."""
    _four_bits(onnx.load(source), target, "QOperator")


def dequantized_int4(source: Path, target: Path) -> None:
    """Weights of 4 bits behind DequantizeLinear."""
    model = onnx.load(source)
    # The quantizer raises the opset's number, and leaves the nodes as they are.
    if model.opset_import[0].version < 21:
        model = onnx.version_converter.convert_version(model, 21)
    _four_bits(model, target, "QDQ")


VARIANTS: Mapping[str, Callable[[Path, Path], None]] = {
    "fp16": half,
    "int8": dynamic_int8,
    "nbits": matmul_nbits,
    "int4dq": dequantized_int4,
}


def check(path: Path) -> None:
    """Raise what ONNX Runtime says of a file that it does not load."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
