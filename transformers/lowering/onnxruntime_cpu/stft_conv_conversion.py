"""A short-time Fourier transform with a constant window is a convolution with windowed sines and cosines.

ONNX Runtime's kernel takes the frames one by one. Where their length is no power of two it makes several longer
transforms of each, which takes longer and loses digits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
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
    need,
    need_float32,
    optional,
    small_array,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM: Final = Form("", "Conv", "in place of STFT")
OF_A_POWER: Final = Form("", "Conv", "in place of STFT of a power of two")

MAX_LENGTH: Final = 4096
"""Numbers of a frame, at most, however fast: for so many the weights have 67 MB."""


class Transform(Struct, frozen=True):
    """A transform of real signals.

    Attributes:
        nodes: The STFT.
        signal: [batch, samples] or [batch, samples, 1].
        step: Samples from one frame to the next.
        window: What the samples of a frame are multiplied by, float64.
    """

    nodes: tuple[ir.Node, ...]
    signal: ir.Value
    step: int
    window: np.ndarray


class StftConvConversion(RewriteRule[Transform]):
    """``STFT(x, step, window)`` → ``Conv(x, windowed sines and cosines)``, its channels the parts of each frequency.

    The weights are those of https://onnx.ai/onnx/operators/onnx__STFT.html: of frequency k and sample n of a frame
    ``window[n] · cos(2π·k·n / length)``, and the same of its negative sine.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("stft_canonicalization", "constant_folding")
    roots = ("STFT",)
    opsets = (17, NEWEST_OPSET)
    numerics = Numerics.FINITE  # in another order an infinity of a frame may be a NaN elsewhere in its transform
    providers = (CPU,)
    weighs = (FORM, OF_A_POWER)
    targets = (Target.ORT,)
    lookback = 0

    def match(self, root: ir.Node) -> Transform:
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
        check_faster(root, FORM if frame & (frame - 1) else OF_A_POWER, columns=frame)
        return Transform((root,), signal, stride, np.ones(frame) if factors is None else factors)

    def rewrite(self, found: Transform) -> ir.Value:
        """Build the convolution of images that are one sample high."""
        basis = _basis(found.window).astype(np.float32)
        weights = constant(basis[:, None, None, :], FLOAT)
        flat = found.signal
        if len(dims(flat)) == 3:
            flat = ir.node("Squeeze", [flat, constant([2])]).outputs[0]
        image = ir.node("Unsqueeze", [flat, constant([1, 2])]).outputs[0]
        parts = ir.node("Conv", [image, weights], {"strides": [1, found.step]}).outputs[0]
        frames = ir.node("Transpose", [parts], {"perm": [0, 3, 2, 1]}).outputs[0]
        return ir.node("Reshape", [frames, constant([0, 0, len(basis) // 2, 2])]).outputs[0]


def _given(length: ir.Value | None, root: ir.Node) -> ir.Value:
    if length is None:
        raise Refusal("it has neither a window nor a length", root)
    return length


def _basis(window: np.ndarray) -> np.ndarray:
    """For each frequency from 0 to half of them two rows: its windowed cosine, and its windowed sine, negative."""
    length = len(window)
    turns = np.outer(np.arange(length // 2 + 1), np.arange(length)) % length
    angles = 2 * np.pi * turns / length
    rows: np.ndarray = np.stack([np.cos(angles), -np.sin(angles)], axis=1).reshape(-1, length) * window
    return rows
