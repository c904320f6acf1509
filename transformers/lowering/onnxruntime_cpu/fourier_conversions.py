"""Fourier transforms of fixed lengths as products with sines and cosines, which ONNX Runtime computes faster."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    need_fixed,
    need_float32,
    need_known,
    opset,
    optional,
    rank,
    small_array,
    splat,
    static_dims,
    tensor_of,
)
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.opset_changes import DFT_AXIS_IS_AN_INPUT_FROM
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import convolved
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule

DFT: Final = Form("", "MatMul", "in place of DFT")
DFT_OF_A_POWER: Final = Form("", "MatMul", "in place of DFT of a power of two")

MAX_NUMBERS: Final = 4096
"""Numbers along the axis, at most, however fast: of so many complex ones the matrix has 256 MB."""

MAX_WHOLE: Final = 256
"""Real numbers of which all frequencies are computed: of more the matrix would have more than half a megabyte."""


class DftMatmulConversion(CpuRule[Match]):
    """``DFT(x)`` → ``MatMul(x, sines and cosines)`` for fixed lengths.

    A Fourier transform of a fixed length is a product with a matrix of sines and cosines.

    For lengths that are no powers of two (FNet's 768 columns) ONNX Runtime's kernel makes several longer transforms of
    one, which takes longer than the product of matrices does, and loses digits. For powers of two it takes numbers one
    by one: in several rows of up to a few hundred the product is faster, too.

    Not for long ones: work and matrix grow with the square. Of many real numbers half of the frequencies are computed,
    and mirrored; of fewer it is faster to compute all. The real numbers of half of the frequencies (`torch.fft.irfft`)
    are a product with twice the sines and cosines of those that stand for two.
    """

    targets = MEASURED_TARGETS
    roots = ("DFT",)
    opsets = (17, NEWEST_OPSET)
    numerics = Numerics.FINITE  # an infinity spreads further in a longer transform
    weighs = (DFT, DFT_OF_A_POWER)

    def match(self, root: ir.Node) -> Match:
        """A known length, of so many rows that the product is faster."""
        (x,) = inputs(root, 1)
        need_float32(x, MEASURED)
        size = rank(x)
        need(_along(root, size) == size - 2, "it is not along the last axis of numbers", root)
        length, parts = need_fixed(dims(x)[-2:], "the length is not known", x)
        asked = optional(root, 1)
        is_inverse, onesided = (bool(attribute(root, name, 0)) for name in ("inverse", "onesided"))
        if is_inverse and onesided:
            return _real_numbers(root, x, length, None if asked is None else _number(asked))
        need(asked is None or _number(asked) == length, "it is cut or padded", root)
        if parts == 2 and (real := _real(x)) is not None:
            x, parts = real, 1
        need(not onesided or parts == 1, "half of the frequencies is asked for otherwise", root)
        need(length <= MAX_NUMBERS and parts in (1, 2), "its matrix would be large", root)
        _check_faster(root, x, length, parts)
        halved = parts == 1 and length > MAX_WHOLE and not onesided
        matrix = _matrix(length, parts, is_inverse=is_inverse, onesided=onesided or halved)
        shared = _known(matrix, root)
        return Match((root,), lambda: _product(x, matrix, shared, mirrored=length if halved else None))


def _check_faster(root: ir.Node, x: ir.Value, length: int, parts: int) -> None:
    form = DFT if length & (length - 1) else DFT_OF_A_POWER
    check_faster(root, form, columns=length, components=parts, rows=dims(x)[:-2])


def _real_numbers(root: ir.Node, x: ir.Value, count: int, asked: int | None) -> Match:
    """The real numbers of which so many frequencies are half: the others are the same, conjugated.

    Args:
        root: The inverse DFT of one side.
        x: The frequencies.
        count: How many there are.
        asked: How many numbers are asked for; None are as many as have so many frequencies, an even number.
    """
    need(opset(root) >= DFT_AXIS_IS_AN_INPUT_FROM, "half of the frequencies is asked for otherwise", root)
    need(dims(x)[-1] == 2, "its frequencies are not complex", x)
    length = 2 * (count - 1) if asked is None else asked
    need(count > 1 and length // 2 + 1 == count, "it is cut or padded", root)
    need(length <= MAX_NUMBERS, "its matrix would be large", root)
    _check_faster(root, x, length, parts=2)
    matrix = _matrix_of_half(length)
    shared = _known(matrix, root)
    return Match((root,), lambda: _product(x, matrix, shared, parts=1))


def _product(
    x: ir.Value, matrix: np.ndarray, shared: ir.Value | None, *, parts: int = 2, mirrored: int | None = None
) -> ir.Value:
    """Build the product, its numbers side by side.

    Args:
        x: What is transformed.
        matrix: Sines and cosines.
        shared: The same matrix, where another transform has it already.
        parts: How many parts a number of the result has.
        mirrored: How many numbers there are, where the matrix gives half of the frequencies and all are asked for.
    """
    ahead = [0] * (rank(x) - 2)
    rows, columns = matrix.shape
    flat = ir.node("Reshape", [x, constant([*ahead, rows])]).outputs[0]
    product = ir.node("MatMul", [flat, shared or constant(matrix, FLOAT)]).outputs[0]
    result = ir.node("Reshape", [product, constant([*ahead, columns // parts, parts])]).outputs[0]
    return result if mirrored is None else _mirrored(result, mirrored, len(ahead))


def _along(node: ir.Node, size: int) -> int:
    """The axis, counted from the front."""
    if opset(node) < DFT_AXIS_IS_AN_INPUT_FROM:
        return ops.OneAxis(node).axis_of(size)
    named = optional(node, 2)
    return (-2 if named is None else _number(named)) % size


def _number(value: ir.Value) -> int:
    return int(splat(value))


def _real(x: ir.Value) -> ir.Value | None:
    """The real part of numbers that zeros were put beside."""
    node = x.producer()
    if not is_op(node, "Concat") or len(node.inputs) != 2:
        return None
    first, second = inputs(node, 2)
    alike = all(isinstance(dims(each)[-1], int) and dims(each)[-1] == 1 for each in (first, second))
    if not alike or not ops.Concat(node).is_last:
        return None
    try:
        return first if _zeros(second) else None
    except Refusal:
        return None


def _zeros(value: ir.Value) -> bool:
    """Whether all elements are 0."""
    node = value.producer()
    return bool(splat(inputs(node, 1)[0] if is_op(node, "Expand") else value) == 0)


def _matrix(length: int, parts: int, *, is_inverse: bool, onesided: bool) -> np.ndarray:
    """What each part of a number adds to each part of a frequency: rows by columns, parts side by side."""
    count = length // 2 + 1 if onesided else length
    angles = _angles(length, count, length)
    cosines, sines = np.cos(angles), np.sin(angles) if is_inverse else -np.sin(angles)
    of_real = np.stack([cosines, sines], axis=-1)
    of_imaginary = np.stack([-sines, cosines], axis=-1)
    every = np.stack([of_real, of_imaginary][:parts], axis=1)
    matrix: np.ndarray = every.reshape(length * parts, 2 * count)
    return (matrix / length if is_inverse else matrix).astype(np.float32)


def _matrix_of_half(length: int) -> np.ndarray:
    """What each part of half of the frequencies adds to each real number; but for the ends, a frequency is two."""
    count = length // 2 + 1
    angles = _angles(count, length, length)
    weights = np.full((count, 1), 2.0)
    weights[0] = 1
    if length % 2 == 0:
        weights[-1] = 1
    matrix: np.ndarray = np.stack([np.cos(angles), -np.sin(angles)], axis=1) * weights[:, None] / length
    return matrix.reshape(2 * count, length).astype(np.float32)


def _angles(rows: int, columns: int, length: int) -> np.ndarray:
    """The angles of so many frequencies by so many numbers, or the other way round."""
    angles: np.ndarray = 2 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % length) / length
    return angles


def _known(matrix: np.ndarray, root: ir.Node) -> ir.Value | None:
    """A constant of the graph that is this matrix: each layer of a model asks for the same."""
    if not isinstance(root.graph, ir.Graph):
        return None
    for value in root.graph.initializers.values():
        alike = is_constant(value) and tensor_of(value).dtype == FLOAT and static_dims(value) == matrix.shape
        if alike and np.array_equal(array_of(value), matrix):
            return value
    return None


def _mirrored(half: ir.Value, length: int, place: int) -> ir.Value:
    """All frequencies of real numbers: the second half is the first in reverse, conjugated, without what is its own."""
    bounds = [constant([at]) for at in ((length - 1) // 2, 0, place, -1)]
    back = ir.node("Slice", [half, *bounds]).outputs[0]
    conjugated = ir.node("Mul", [back, constant(np.array([1, -1], np.float32))]).outputs[0]
    return ir.node("Concat", [half, conjugated], {"axis": place}).outputs[0]


STFT: Final = Form("", "Conv", "in place of STFT")
STFT_OF_A_POWER: Final = Form("", "Conv", "in place of STFT of a power of two")

MAX_LENGTH: Final = 4096
"""Numbers of a frame, at most, however fast: for so many the weights have 67 MB."""


class StftConvConversion(CpuRule[Match]):
    """``STFT(x, step, window)`` → ``Conv(x, windowed sines and cosines)``, its channels the parts of each frequency.

    A short-time Fourier transform with a constant window is a convolution with windowed sines and cosines.

    ONNX Runtime's kernel takes the frames one by one. Where their length is no power of two it makes several longer
    transforms of each, which takes longer and loses digits.

    The weights are those of https://onnx.ai/onnx/operators/onnx__STFT.html: of frequency k and sample n of a frame
    ``window[n] · cos(2π·k·n / length)``, and the same of its negative sine.
    """

    targets = MEASURED_TARGETS
    after = ("stft_canonicalization", "constant_folding")
    roots = ("STFT",)
    opsets = (17, NEWEST_OPSET)
    numerics = Numerics.FINITE  # in another order an infinity of a frame may be a NaN elsewhere in its transform
    weighs = (STFT, STFT_OF_A_POWER)
    lookback = 0

    def match(self, root: ir.Node) -> Match:
        """A constant window and step, and a signal of real numbers that has one frame at least."""
        signal, step = inputs(root, 2)
        need_float32(signal)
        shape = dims(signal)
        need(len(shape) == 2 or shape[2:] == (1,), "its numbers are not real", signal)
        need(attribute(root, "onesided", 1) == 1, "the other half of the frequencies is asked for", root)
        window, length = optional(root, 2), optional(root, 3)
        factors = None if window is None else array_of(window).astype(np.float64)
        sizes = (len(factors),) if factors is not None and length is None else ()
        (frame,) = sizes or (int(small_array(_given(length, root)).reshape(())),)
        need(factors is None or factors.shape == (frame,), "the window is of another length", root)
        need(0 < frame <= MAX_LENGTH, "its weights would be large", root)
        stride = int(small_array(step).reshape(()))
        need(stride > 0, "the frames do not go on", step)
        need(symbolic.at_least(shape[1], frame), "the signal may be shorter than a frame", signal)
        check_faster(root, STFT if frame & (frame - 1) else STFT_OF_A_POWER, columns=frame)
        weights = _basis(np.ones(frame) if factors is None else factors).astype(np.float32)
        return Match((root,), lambda: _frames(signal, stride, weights))


def _frames(signal: ir.Value, step: int, weights: np.ndarray) -> ir.Value:
    """Build the convolution of images that are one sample high.

    Args:
        signal: [batch, samples] or [batch, samples, 1].
        step: Samples from one frame to the next.
        weights: The windowed sines and cosines.
    """
    if len(dims(signal)) == 3:
        signal = ir.node("Squeeze", [signal, constant([2])]).outputs[0]
    image = ir.node("Unsqueeze", [signal, constant([1, 2])]).outputs[0]
    parts = convolved(image, weights[:, None, None, :], None, {"strides": [1, step]})
    frames = ir.node("Transpose", [parts], {"perm": [0, 3, 2, 1]}).outputs[0]
    return ir.node("Reshape", [frames, constant([0, 0, len(weights) // 2, 2])]).outputs[0]


def _given(length: ir.Value | None, root: ir.Node) -> ir.Value:
    return need_known(length, "it has neither a window nor a length", root)


def _basis(window: np.ndarray) -> np.ndarray:
    """For each frequency from 0 to half of them two rows: its windowed cosine, and its windowed sine, negative."""
    length = len(window)
    angles = _angles(length // 2 + 1, length, length)
    rows: np.ndarray = np.stack([np.cos(angles), -np.sin(angles)], axis=1).reshape(-1, length) * window
    return rows
