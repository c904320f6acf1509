"""Forms of convolutional models: enlarging, few outputs, small groups, windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from ortopt.analysis.costs import Form
from ortopt.cost_measurement.entries import Array, Entry, FormComparison, Given, cases, normal, shape, weight

_BLOCK: Final = 16
_CUBIC: Final = -0.75
"""The coefficient of cubic interpolation that ONNX has by default."""


def _linear(distance: float) -> float:
    return max(0.0, 1 - abs(distance))


def _cubic(distance: float) -> float:
    x = abs(distance)
    if x <= 1:
        return (_CUBIC + 2) * x**3 - (_CUBIC + 3) * x**2 + 1
    return _CUBIC * x**3 - 5 * _CUBIC * x**2 + 8 * _CUBIC * x - 4 * _CUBIC if x < 2 else 0.0


def _interpolation(size: int, scale: int, kernel: Callable[[float], float]) -> Array:
    """The matrix that enlarges a row; beyond its ends the row goes on as it ends."""
    matrix = np.zeros((size * scale, size), np.float64)
    for target in range(size * scale):
        source = (target + 0.5) / scale - 0.5
        for place in range(int(np.floor(source)) - 1, int(np.floor(source)) + 3):
            matrix[target, min(max(place, 0), size - 1)] += kernel(source - place)
    return matrix.astype(np.float32)


def _as_products(mode: str, kernel: Callable[[float], float]) -> Callable[[Given], FormComparison]:
    """Enlarging by two products with constant matrices."""

    def build(given: Given) -> FormComparison:
        channels, side, scale = given["channels"], given["side"], given["scale"]
        rows = _interpolation(side, scale, kernel)
        weights = {"a": rows, "b": rows.T.copy(), "s": np.array([1, 1, scale, scale], np.float32)}
        before = f'y = Resize <mode = "{mode}"> (x, , s)'
        return FormComparison(
            {"x": normal(1, channels, side, side)}, before, "t = MatMul (a, x) y = MatMul (t, b)", weights
        )

    return build


def _as_phases(given: Given) -> FormComparison:
    """Cubic enlarging by a convolution of 5×5 with an output for each phase."""
    channels, side, scale = given["channels"], given["side"], given["scale"]
    sources = [(phase + 0.5) / scale - 0.5 for phase in range(scale)]
    taps = np.array([[_cubic(source - place) for place in range(-2, 3)] for source in sources])
    kernel = np.einsum("pu,qv->pquv", taps, taps).reshape(scale * scale, 1, 5, 5).astype(np.float32)
    weights = {
        "w": kernel,
        "s": np.array([1, 1, scale, scale], np.float32),
        "p": shape(0, 0, 2, 2, 0, 0, 2, 2),
        "apart": shape(channels, 1, side, side),
        "whole": shape(1, channels, side * scale, side * scale),
    }
    before = 'y = Resize <mode = "cubic"> (x, , s)'
    after = f"""r = Reshape (x, apart) e = Pad <mode = "edge"> (r, p) c = Conv (e, w)
        d = DepthToSpace <blocksize = {scale}> (c) y = Reshape (d, whole)"""
    return FormComparison({"x": normal(1, channels, side, side)}, before, after, weights)


def _small_groups(given: Given) -> FormComparison:
    """Groups of few channels as groups of a block, behind another convolution."""
    channels, side, size = given["channels"], given["side"], given["group"]
    own = weight(channels, size, 3, 3)
    merged = np.zeros((channels, _BLOCK, 3, 3), np.float32)
    for output in range(channels):
        start = output // size * size % _BLOCK
        merged[output, start : start + size] = own[output]
    weights = {"f": weight(channels, channels, 1, 1), "w": own, "m": merged}
    grouped = "Conv <pads = [1, 1, 1, 1], group = {}>"
    before = f"h = Conv (x, f) y = {grouped.format(channels // size)} (h, w)"
    after = f"h = Conv (x, f) y = {grouped.format(channels // _BLOCK)} (h, m)"
    return FormComparison({"x": normal(1, channels, side, side)}, before, after, weights)


def _windows(given: Given) -> FormComparison:
    """Rows and columns that are rolled and put into windows."""
    side, channels, window = given["side"], given["columns"], 7
    count, moved = side // window, window // 2
    places = np.roll(np.arange(side * side).reshape(side, side), (-moved, -moved), (0, 1))
    order = places.reshape(count, window, count, window).transpose(0, 2, 1, 3).reshape(-1)
    weights = {
        "parts": shape(moved, side - moved),
        "apart": shape(count, window, count, window, channels),
        "flat": shape(side * side, channels),
        "order": order.astype(np.int64),
        "wide": shape(count * count, window * window, channels),
    }
    before = """a, b = Split <axis = 1> (x, parts) c = Concat <axis = 1> (b, a) d, e = Split <axis = 2> (c, parts)
        f = Concat <axis = 2> (e, d) g = Reshape (f, apart) h = Transpose <perm = [0, 2, 1, 3, 4]> (g)
        y = Reshape (h, wide)"""
    after = "r = Reshape (x, flat) g = Gather (r, order) y = Reshape (g, wide)"
    return FormComparison({"x": normal(1, side, side, channels)}, before, after, weights)


ENTRIES: Final = (
    Entry(
        Form("", "MatMul", "of linear interpolation"),
        "linear Resize",
        _as_products("linear", _linear),
        cases(
            channels=(64, 256, 32),
            side=(8, 16, 4),
            scale=(2, 2, 8),
            multiplications=(12, 24, 5),
            elements=(16384, 262144, 32768),
        ),
    ),
    Entry(
        Form("", "MatMul", "of cubic interpolation"),
        "cubic Resize",
        _as_products("cubic", _cubic),
        cases(channels=(3, 64), side=(16, 32), scale=(2, 2), multiplications=(24, 48)),
    ),
    Entry(
        Form("", "Conv", "of the phases of cubic interpolation"),
        "cubic Resize by a whole number",
        _as_phases,
        cases(channels=(3, 64), side=(16, 32), scale=(2, 2)),
        as_loaded=True,
    ),
    Entry(
        Form("", "Conv", "with groups merged to blocks"),
        "Conv with groups of 2 to 8 channels",
        _small_groups,
        cases(channels=(32, 128, 256), side=(56, 14, 14), group=(2, 4, 8)),
        as_loaded=True,
    ),
    Entry(
        Form("", "Gather", "of rolled rows"),
        "two Splits, two Concats and the Transpose of windows",
        _windows,
        cases(side=(14, 56, 28), columns=(384, 96, 192)),
    ),
)
"""What is measured of convolutional models."""

__all__ = ["ENTRIES"]
