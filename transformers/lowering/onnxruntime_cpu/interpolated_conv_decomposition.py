"""A convolution of an interpolated image computes far more than the small image holds: its rows and columns follow.

Each place of the kernel is a projection of points, and these are computed at the small size. What a place reads of the
enlarged image, shifts, strides and the frame of zeros included, are two matrices of constants: one for columns, one for
rows. The products with the matrices of rows add up all places, and all images that are joined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.magnitudes import need_no_larger
from ortopt.framework.fusions import is_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    array_of,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    need_fixed,
    optional,
)
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.patterns.convolutions import separate_activation
from ortopt.patterns.interpolation import Image, Matrix, interpolated
from ortopt.rule import Match
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import CONVOLUTIONS, convolution, points
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule

RESIZE, RESIZE_OF_BLOCKS, MOVE, PRODUCT = 90, 25, 15, 1.3
"""What an element costs that is interpolated, by a kernel that has blocks of channels too, that is joined, moved or
added, and a multiplication of a MatMul, in multiplications of a convolution: measured on a CPU."""

FORM = Form("", "MatMul", "of what a convolution reads of a smaller image")

INFER = -1

_OF_TOKENS = ("MatMul", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Ops whose results are in no blocks of channels."""


class Window(Struct, frozen=True):
    """What a kernel reads along an axis.

    Attributes:
        places: How many elements.
        stride: How far it moves.
        dilation: How far the elements are apart.
        before: The zeros before the first element of the image.
        results: How often it moves.
    """

    places: int
    stride: int
    dilation: int
    before: int
    results: int

    def matrix(self, interpolation: Matrix) -> Matrix:
        """What each result reads of an image before its interpolation, the places of the kernel side by side."""
        size = interpolation.shape[0]
        taken = []
        for place in range(self.places):
            read = np.arange(self.results) * self.stride - self.before + place * self.dilation
            inside = (read >= 0) & (read < size)
            taken.append(np.where(inside[:, None], interpolation[np.clip(read, 0, size - 1)], np.float32(0)))
        return np.concatenate(taken, axis=1)


class Part(Struct, frozen=True):
    """What is convolved.

    Attributes:
        value: The channels.
        start: Which channel is the first one.
        channels: How many there are.
        image: The image that they are interpolated from; None where they stay as they are.
    """

    value: ir.Value
    start: int
    channels: int
    image: Image | None


class InterpolatedConvDecomposition(CpuRule[Match]):
    """``Conv(Concat(x, Resize(z)))`` → ``Conv(x) + MatMul(rows, MatMul(Conv(z), columns))``, where that is less work.

    The convolution of z has single points, and a channel for each place of the kernel. Heads of UPerNet, DeepLabV3+ and
    SegFormer have such convolutions, and decoders with skips.
    """

    targets = MEASURED_TARGETS
    roots = CONVOLUTIONS
    needs = ("Resize",)
    weighs = (FORM,)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Match:
        """A dense convolution, and parts of which some are interpolated to a fixed size along rows and columns."""
        x, weight, (outputs, channels, *kernel) = convolution(root, why=MEASURED)
        windows = _windows(root, kernel)
        values: Sequence[ir.Value] = (x,)
        nodes = [root]
        private = is_used_once(x)
        if is_op(concat := x.producer(), "Concat"):
            need(ops.Concat(concat).axis == 1, "no channels are joined", concat)
            values = inputs(concat, len(concat.inputs))
            nodes += [concat] if private else []
        parts = _parts(values, outputs, windows)
        chosen = [part for part in parts if part.image is not None]
        need(bool(chosen), "nothing before it is interpolated to a fixed size where that saves work", x)
        need(array_of(weight).size > 0, "the weights are empty", weight)
        need(sum(part.channels for part in parts) == channels, "the channels do not fit", root)
        need_no_larger(np.abs(array_of(weight)), (1.0,), FLOAT, weight)
        resizes = [part.value.producer() for part in chosen if private and is_used_once(part.value)]
        gone = tuple(node for node in resizes if node is not None)
        return Match((*nodes, *gone), lambda: _decomposed(root, parts, windows))


def _decomposed(root: ir.Node, parts: Sequence[Part], windows: tuple[Window, Window]) -> ir.Value:
    """Build a convolution of what is not interpolated, with the bias, and the products beside it."""
    weight = array_of(root.inputs[1])
    stays = [part for part in parts if part.image is None]
    wide = [_columns(part, part.image, weight, windows[1]) for part in parts if part.image is not None]
    joined = wide[0] if len(wide) == 1 else ir.node("Concat", wide, {"axis": 2}).outputs[0]
    total = product = _rows([part.image for part in parts if part.image is not None], windows, joined, weight.shape[0])
    if stays:
        total = ir.node("Add", [_convolution(root, stays, weight), product]).outputs[0]
    elif (bias := optional(root, 2)) is not None:
        shaped = ir.node("Reshape", [bias, constant([INFER, 1, 1])])
        total = ir.node("Add", [product, shaped.outputs[0]]).outputs[0]
    return separate_activation(root, total)


def _windows(root: ir.Node, kernel: Sequence[int]) -> tuple[Window, Window]:
    """The windows of a dense convolution of images along rows and columns."""
    conv = ops.Conv(root)
    need(conv.group == 1, "it has groups", root)
    pads = conv.pads
    need(len(pads) == 4 and min(pads) >= 0, "its padding is no frame around the image", root)
    windows = []
    for size, places, stride, dilation, before in zip(
        dims(root.outputs[0], rank=4)[2:], kernel, conv.strides, conv.dilations, pads, strict=False
    ):
        if not isinstance(size, int) or size < 1:
            raise Refusal("height and width of its result are not fixed", root)
        windows.append(Window(places, stride, dilation, before, size))
    rows, columns = windows
    return rows, columns


def _parts(values: Sequence[ir.Value], outputs: int, windows: tuple[Window, Window]) -> tuple[Part, ...]:
    """What is convolved, and which of it is interpolated so that the decomposition saves work."""
    parts = []
    start = 0
    for value in values:
        (channels,) = need_fixed(dims(value, rank=4)[1:2], "the channels are not known", value)
        parts.append(Part(value, start, channels, _image(value, channels, outputs, windows)))
        start += channels
    return tuple(parts)


def _image(value: ir.Value, channels: int, outputs: int, windows: tuple[Window, Window]) -> Image | None:
    """The image that channels are interpolated from, where the decomposition saves work."""
    resize = value.producer()
    if not is_op(resize, "Resize") or not is_used_once(value):
        return None
    try:
        image = interpolated(resize)
    except Refusal:
        return None
    single = windows[0].places == windows[1].places == 1
    if not image.is_fixed or (single and _is_blocked(image)):
        return None  # a blocked kernel interpolates the result of points faster (resize_projection_reordering)
    before, after = (cost(image, channels, outputs, windows) for cost in (_cost, _cost_after))
    return image if before and is_faster(resize, FORM, left=math.ceil(100 * after / before)) else None


def _cost(image: Image, channels: int, outputs: int, windows: tuple[Window, Window]) -> float:
    """What a convolution of an interpolated image costs; of points, the interpolation may be the last step."""
    rows, columns = windows
    results, places = rows.results * columns.results, rows.places * columns.places
    resize = RESIZE_OF_BLOCKS if _is_blocked(image) else RESIZE
    whole = _area(image.after) * channels * (resize + MOVE) + results * channels * outputs * places
    if places > 1:
        return whole
    return min(whole, _area(image.before) * channels * outputs + results * outputs * (resize + MOVE))


def _is_blocked(image: Image) -> bool:
    """Whether a blocked layout may go on through the interpolation: not behind tokens, nor by a broken factor."""
    return all(scale == int(scale) for scale in image.scales) and not is_op(image.x.producer(), *_OF_TOKENS)


def _cost_after(image: Image, channels: int, outputs: int, windows: tuple[Window, Window]) -> float:
    """What the decomposition costs: points of the small image, moved where there are several places, two products."""
    rows, columns = windows
    height, width = need_fixed(image.before, "a size is not fixed", image.x)
    places = rows.places * columns.places
    of_points = height * width * outputs * places * (channels + (2 * MOVE if places > 1 else 0))
    tall = rows.places * height
    of_columns = tall * columns.results * (columns.places * width * PRODUCT + MOVE)
    of_rows = rows.results * columns.results * (tall * PRODUCT + MOVE)
    return of_points + outputs * (of_columns + of_rows)


def _area(sizes: Sequence[object]) -> int:
    return math.prod(size for size in sizes if isinstance(size, int))


def _columns(part: Part, image: Image, weight: np.ndarray, window: Window) -> ir.Value:
    """The results' columns of a part: below each other what each row of the kernel reads of the small image's rows."""
    height, width = need_fixed(image.before, "a size is not fixed", image.x)
    own = weight[:, part.start : part.start + part.channels].transpose(0, 2, 3, 1)
    outputs, rows, columns, _ = own.shape
    value = points(image.x, own.reshape(-1, part.channels).T)
    if rows * columns > 1:
        apart = ir.node("Reshape", [value, constant([INFER, outputs * rows, columns, height, width])])
        beside = ir.node("Transpose", apart.outputs, {"perm": (0, 1, 3, 2, 4)})
        target = constant([INFER, outputs, rows * height, columns * width])
        value = ir.node("Reshape", [beside.outputs[0], target]).outputs[0]
    of_columns = window.matrix(image.matrices()[1])
    return ir.node("MatMul", [value, constant(np.ascontiguousarray(of_columns.T), FLOAT)]).outputs[0]


def _rows(images: Sequence[Image], windows: tuple[Window, Window], columns: ir.Value, outputs: int) -> ir.Value:
    """The results' rows, of all parts together.

    ONNX Runtime's MatMul refuses a matrix before a batch of no matrices. Where there may be no image, a convolution of
    points does the same, a little slower.
    """
    matrix = np.concatenate([windows[0].matrix(image.matrices()[0]) for image in images], axis=1)
    if all(image.has_images and image.has_channels for image in images):
        return ir.node("MatMul", [constant(matrix, FLOAT), columns]).outputs[0]
    results, read = matrix.shape
    signals = ir.node("Reshape", [columns, constant([INFER, read, windows[1].results])])
    target = constant([INFER, outputs, results, windows[1].results])
    return ir.node("Reshape", [points(signals.outputs[0], matrix.T, axes=1), target]).outputs[0]


def _convolution(root: ir.Node, stays: Sequence[Part], weight: np.ndarray) -> ir.Value:
    """The convolution of the parts that stay as they are, without its activation."""
    values = [part.value for part in stays]
    joined = values[0] if len(values) == 1 else ir.node("Concat", values, {"axis": 1}).outputs[0]
    own = np.concatenate([weight[:, part.start : part.start + part.channels] for part in stays], axis=1)
    plain = [each for name, each in root.attributes.items() if not name.startswith("activation")]
    operands = [joined, constant(np.ascontiguousarray(own), FLOAT), *root.inputs[2:3]]
    return ir.Node("", "Conv", operands, plain).outputs[0]
