"""Image inputs that are given as images are decoded: channels last, as bytes, not normalized.

What the caller did before is in the model then: a Transpose, a Cast, and a BatchNormalization, which folds into a
convolution behind it that pads nothing. A border of zeros is black before the normalization, and the mean behind it: in
front of a convolution that pads, the normalization stays an op, unless it only multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.errors import UsageError
from ortopt.interface.change import Arrays, Insertion, InterfaceChange
from ortopt.interface_options import ImageInput
from ortopt.terminal_text import quoted

_BROADCASTING_OPSET: Final = 7
"""The first opset whose Mul and Add broadcast as numpy does, and whose BatchNormalization is no training."""

_PARAMETERS: Final = ("scale", "shift", "mean", "variance")


class Images(InterfaceChange):
    """Images in another layout, dtype or range.

    Args:
        model: The model; changed in place.
        images: How they are given, by the names of inputs.
        token: Cancellation token.

    Raises:
        UsageError: If a name is none of an input, or the input is no image of float32.
    """

    def __init__(self, model: ir.Model, images: Mapping[str, ImageInput], token: CancellationToken) -> None:
        self._images = images
        self._ranks: dict[str, int] = {}
        inputs = {value.name or "": value for value in model.graph.inputs if not value.is_initializer()}
        for name, image in images.items():
            if name not in inputs:
                known = ", ".join(map(quoted, inputs))
                raise UsageError(f"image_inputs: no input is named {quoted(name)}; the inputs: {known}")
            value = inputs[name]
            _check(model, value, image)
            assert value.shape is not None
            self._ranks[name] = len(value.shape)
            _change(model, value, image, token)

    def calls(self, inputs: Arrays) -> Sequence[Arrays]:
        """Images as the original takes them: transposed and normalized."""
        return [{name: self._normalized(name, array) for name, array in inputs.items()}]

    def _normalized(self, name: str, array: Any) -> Any:
        image = self._images.get(name)
        if image is None:
            return array
        pixels = np.asarray(array).astype(np.float64)
        if image.layout == "nhwc":
            pixels = np.moveaxis(pixels, -1, 1)
        scale, mean, std = self._constants(name)
        return ((pixels * scale - mean) / std).astype(np.float32)

    def given(self, inputs: Arrays) -> Arrays:
        """Images whose normalization gives those of the original; as bytes, the nearest ones."""
        return {name: self._as_pixels(name, array) for name, array in inputs.items()}

    def _as_pixels(self, name: str, array: Any) -> Any:
        image = self._images.get(name)
        if image is None or np.asarray(array).dtype != np.float32:  # bytes are given as they will be
            return array
        scale, mean, std = self._constants(name)
        pixels = (np.asarray(array).astype(np.float64) * std + mean) / scale
        if image.layout == "nhwc":
            pixels = np.moveaxis(pixels, 1, -1)
        if image.dtype == "float32":
            return pixels.astype(np.float32)
        return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)

    def _constants(self, name: str) -> tuple[Any, ...]:
        image, rank = self._images[name], self._ranks[name]
        return tuple(_column(numbers, rank) for numbers in (image.scale, image.mean, image.std))


def _column(numbers: Sequence[float], rank: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Numbers of channels, for images with channels behind the batch."""
    return np.array(numbers, np.float64).reshape(-1, *[1] * (rank - 2))


def _check(model: ir.Model, value: ir.Value, image: ImageInput) -> None:
    """Refuse what is no image of float32."""
    name = f"image_inputs: input {quoted(value.name)}"
    dtype = value.type.dtype if isinstance(value.type, ir.TensorType) else None
    if dtype != ir.DataType.FLOAT:
        raise UsageError(f"{name} is no tensor of float32")
    if value.shape is None or len(value.shape) not in (4, 5):
        raise UsageError(f"{name} is no image: it has not the dimensions batch, channels, height, width")
    if value in model.graph.outputs:
        raise UsageError(f"{name} is an output, too, which stays as it is")
    counts = {len(each) for each in (image.scale, image.mean, image.std)} - {1}
    channels = value.shape[1]
    if counts and {channels} != counts:
        raise UsageError(f"{name} has {channels} channels; scale, mean or std has {counts.pop()} numbers")
    version = model.opset_imports.get("", _BROADCASTING_OPSET)
    if version < _BROADCASTING_OPSET:
        raise UsageError(f"{name}: opset {version} has no ops that broadcast; give --opset {_BROADCASTING_OPSET} first")


def _change(model: ir.Model, value: ir.Value, image: ImageInput, token: CancellationToken) -> None:
    assert value.shape is not None
    shape, rank = value.shape, len(value.shape)
    readers, nodes = [(use.node, use.idx) for use in value.uses()], Insertion(model, value, token)
    result = value
    if image.layout == "nhwc":
        last = [0, *range(2, rank), 1]
        value.shape = ir.Shape([shape.dims[i] for i in last], denotations=[shape.get_denotation(i) for i in last])
        result = nodes.node("Transpose", [result], {"perm": [0, rank - 1, *range(1, rank - 1)]})
    if image.dtype == "uint8":
        value.type = ir.TensorType(ir.DataType.UINT8)
        result = nodes.node("Cast", [result], {"to": ir.DataType.FLOAT.value})
    result = _normalization(nodes, result, image, shape.dims[1], rank)
    if result is not value:
        nodes.finish(readers, result)


def _normalization(
    nodes: Insertion, image: ir.Value, how: ImageInput, channels: int | ir.SymbolicDim, rank: int
) -> ir.Value:
    """What the original takes of an image in its layout: one op that both scales and shifts, for it folds at once."""
    scale, mean, std = (_column(numbers, rank) for numbers in (how.scale, how.mean, how.std))
    factor, shift = scale / std, -mean / std
    scales, shifts = bool((factor != 1).any()), bool((shift != 0).any())
    if scales and shifts and isinstance(channels, int):
        rows = (factor, shift, np.zeros(1), np.ones(1))  # and the mean 0 and the variance 1
        constants = [
            nodes.constant(ir.tensor(np.broadcast_to(row.reshape(-1), (channels,)).astype(np.float32)), hint)
            for row, hint in zip(rows, _PARAMETERS, strict=True)
        ]
        return nodes.node("BatchNormalization", [image, *constants], {"epsilon": 0.0})
    for op, numbers in (("Mul", factor), ("Add", shift)):
        if scales if op == "Mul" else shifts:
            constant = nodes.constant(ir.tensor(numbers.astype(np.float32)), f"{op}_constant")
            image = nodes.node(op, [image, constant], {})
    return image
