"""Quantized members of the zoo, from its float ones: `python -m benchmarks.exports.quantized`.

Each is grown, put through ONNX Runtime's own quantizer at its random weights, stripped, and entered into the zoo.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from benchmarks.exports.skeletons import KEPT_BYTES, MODELS, enter, entry, strip
from ortopt import zoo

Inputs = Mapping[str, np.ndarray[Any, Any]]


class Recipe(NamedTuple):
    """How a member of the zoo is made of another one.

    Attributes:
        source: The name of the float model.
        family: The family of the quantized one.
        quantize: Reads the first file, writes the second.
    """

    source: str
    family: str
    quantize: Callable[[Path, Path, Inputs], None]


class _Once:
    """A calibration reader that gives one set of inputs."""

    def __init__(self, inputs: Inputs) -> None:
        self._pending = [dict(inputs)]

    def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """The next set of inputs, or None."""
        return self._pending.pop() if self._pending else None


def static_qdq(source: Path, target: Path, inputs: Inputs, ops: Sequence[str] = ()) -> None:
    """Pairs of QuantizeLinear and DequantizeLinear around ops.

    Args:
        source: The float model.
        target: Where the quantized one goes.
        inputs: What it is calibrated with.
        ops: The ops; all that ONNX Runtime has a quantized kernel for, if none.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = source.with_suffix(".prepared.onnx")
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        target,
        _Once(inputs),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=list(ops) or None,
    )


def products_qdq(source: Path, target: Path, inputs: Inputs) -> None:
    """The same around products of matrices: a mask's lowest number would leave a sum no steps."""
    static_qdq(source, target, inputs, ("Gemm", "MatMul"))


def dynamic_lstm(source: Path, target: Path, inputs: Inputs) -> None:  # noqa: ARG001 -- scales are found as it runs
    """LSTM and products of matrices with scales that are found while the model runs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QInt8, op_types_to_quantize=["LSTM", "MatMul", "Gemm"])


RECIPES: Mapping[str, Recipe] = {
    "bert_small_qdq__qdq": Recipe("bert_small__ts17", "bert_quant", products_qdq),
    "lstm_tagger_int8__dynamic_int8": Recipe("lstm_tagger__ts13", "lstm_quant", dynamic_lstm),
    "mobilenet_v2_qdq__qdq": Recipe("mobilenet_v2__ts13nf", "mobilenet_quant", static_qdq),
}


def make(name: str) -> None:
    """Write one member of the zoo, with its entries.

    Args:
        name: One of `RECIPES`.
    """
    recipe = RECIPES[name]
    inputs = zoo.inputs(recipe.source)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
        source.write_bytes(Path(zoo.cached(recipe.source)).read_bytes())
        recipe.quantize(source, target, inputs)
        model = onnx.load(target)
    listed = entry(name, recipe.family, model, inputs)
    onnx.save(strip(model, KEPT_BYTES), MODELS / f"{name}.onnx")
    enter(listed, [])


def main() -> None:
    """Read the command line, make what it names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports.quantized")
    parser.add_argument("name", nargs="*", help="members of the zoo; all if none")
    for name in parser.parse_args().name or RECIPES:
        if name not in RECIPES:
            parser.error(f"{name} is none of {', '.join(RECIPES)}")
        make(name)


if __name__ == "__main__":
    main()
