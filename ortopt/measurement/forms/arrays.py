"""The arrays and texts of small models: what the files of this folder call by name."""

from __future__ import annotations

from math import isqrt
from typing import Any, Final, TypeAlias

import numpy as np
import onnx_ir as ir

Array: TypeAlias = "np.ndarray[Any, Any]"

_CUBIC: Final = -0.75
"""The coefficient of cubic interpolation that ONNX has by default."""

_TO_HEADS: Final = "Transpose <perm = [0, 2, 1, 3]>"


# -- numbers


def normal(*shape: int) -> Array:
    """Floats around 0, the same for the same shape."""
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def weight(*shape: int) -> Array:
    """A weight that keeps a product's numbers as large as they are."""
    scale = np.float32(1 / np.sqrt(max(int(np.prod(shape[:-1])), 1)))
    return normal(*shape) * scale


def integers(kind: str, low: int, high: int, *shape: int) -> Array:
    """Integers of a range, the same for the same shape."""
    return to(kind, np.random.default_rng(list(shape)).integers(low, high, shape))


def quantized(kind: str, *shape: int) -> Array:
    """Integers of the whole range of a type of 8 bits."""
    low = -128 if kind == "int8" else 0
    return integers(kind, low, low + 256, *shape)


def middle(kind: str) -> Array:
    """The zero point in the middle of a type of 8 bits."""
    return full(kind, 0 if kind == "int8" else 128)


def shape(*sizes: int) -> Array:
    """A shape as a constant."""
    return np.array(sizes, np.int64)


def scalar(value: float) -> Array:
    """A float without dimensions."""
    return full("float", value)


def full(kind: str, value: float, *shape: int) -> Array:
    """The same number everywhere."""
    return np.full(shape, value, ir.DataType[kind.upper()].numpy())


def count(number: int) -> Array:
    """The numbers from 0 on."""
    return np.arange(number, dtype=np.int64)


def evenly(first: float, last: float, number: int) -> Array:
    """Floats from one to another."""
    return np.linspace(first, last, number, dtype=np.float32)


def hann(length: int) -> Array:
    """A window of a signal."""
    return np.hanning(length).astype(np.float32)


# -- of other arrays


def to(kind: str, array: Array) -> Array:
    """The same numbers of another type, by ONNX's name."""
    return np.asarray(array).astype(ir.DataType[kind.upper()].numpy())


def reshape(array: Array, *shape: int) -> Array:
    """The same elements in another shape."""
    return array.reshape(shape)


def reversed_rows(array: Array) -> Array:
    """The last row first."""
    return array[::-1].copy()


def is_positive(array: Array) -> Array:
    """Which numbers are."""
    return array > 0


def magnitude(array: Array) -> Array:
    """Numbers without their signs."""
    return np.abs(array)


def transposed(matrix: Array) -> Array:
    """A matrix with its axes exchanged."""
    return matrix.T.copy()


def unpacked(packed: Array, bits: int) -> Array:
    """The numbers of few bits that the rows of a weight hold; the rows become columns."""
    halves = np.stack([packed & 15, packed >> 4], axis=-1) if bits == 4 else packed
    return halves.reshape(len(packed), -1).T


def joined(axis: int, *arrays: Array) -> Array:
    """Several arrays as one."""
    return np.concatenate(arrays, axis)


def blocks_of_groups(own: Array, block: int) -> Array:
    """The weight of a grouped convolution for groups of more channels: zeros between channels that had other groups."""
    channels, size, *kernel = own.shape
    merged = np.zeros((channels, block, *kernel), np.float32)
    for output in range(channels):
        start = output // size * size % block
        merged[output, start : start + size] = own[output]
    return merged


# -- of certain computations


def causal(length: int) -> Array:
    """A mask that hides later positions."""
    return np.where(np.tri(length) > 0, 0, np.float32(-1e9)).astype(np.float32)


def causal_of_groups(length: int, past: int, group: int) -> Array:
    """A mask that hides later positions from query heads that share keys, behind those in the cache."""
    positions = np.arange(length)[:, None] + past
    later = np.arange(past + length)[None, :] > positions
    return np.tile(np.where(later, np.float32(-1e4), np.float32(0)), (group, 1)).astype(np.float32)


def windows(side: int, window: int) -> Array:
    """Which pixels lie where, when rows and columns are rolled by half a window and put into windows."""
    moved, number = window // 2, side // window
    places = np.roll(np.arange(side * side).reshape(side, side), (-moved, -moved), (0, 1))
    return places.reshape(number, window, number, window).transpose(0, 2, 1, 3).reshape(-1).astype(np.int64)


def interpolation(mode: str, size: int, scale: int) -> Array:
    """The matrix that enlarges a row; beyond its ends the row goes on as it ends."""
    matrix = np.zeros((size * scale, size), np.float64)
    for target in range(size * scale):
        source = (target + 0.5) / scale - 0.5
        for place in range(int(np.floor(source)) - 1, int(np.floor(source)) + 3):
            part = _cubic(source - place) if mode == "cubic" else max(0.0, 1 - abs(source - place))
            matrix[target, min(max(place, 0), size - 1)] += part
    return matrix.astype(np.float32)


def cubic_phases(scale: int) -> Array:
    """The kernel that enlarges an image, with an output for each phase."""
    sources = [(phase + 0.5) / scale - 0.5 for phase in range(scale)]
    taps = np.array([[_cubic(source - place) for place in range(-2, 3)] for source in sources])
    kernels: Array = np.einsum("pu,qv->pquv", taps, taps)
    return kernels.reshape(scale * scale, 1, 5, 5).astype(np.float32)


def _cubic(distance: float) -> float:
    x = abs(distance)
    if x <= 1:
        return (_CUBIC + 2) * x**3 - (_CUBIC + 3) * x**2 + 1
    return _CUBIC * x**3 - 5 * _CUBIC * x**2 + 8 * _CUBIC * x - 4 * _CUBIC if x < 2 else 0.0


def siblings(rows: int, columns: int, outputs: int, parts: int = 3) -> dict[str, Any]:
    """Products of one operand, their weights as one, and the parts of its result."""
    each = outputs // parts
    weights = [weight(columns, each) * np.float32(1 + number) for number in range(parts)]
    return {
        "x": normal(rows, columns),
        **{f"w{number}": part for number, part in enumerate(weights)},
        "w": np.concatenate(weights, axis=1),
        "s": shape(*[each] * parts),
        "results": ", ".join(f"p{number}" for number in range(parts)),
        "products": " ".join(f"p{number} = MatMul (x, w{number})" for number in range(parts)),
    }


def matrices_between_rows(batch: int, length: int, columns: int, second: int = 0) -> dict[str, Any]:
    """Matrices that lie between rows, of the first operand or (`second`) of the other one."""
    plain, square = (batch, length, columns), (batch, columns, columns)
    x, z = (plain, (columns, batch, columns)) if second else ((length, batch, columns), square)
    which, pair, side = ("z", "x, t", "B") if second else ("x", "t, z", "A")
    return {"x": normal(*x), "z": normal(*z), "which": which, "pair": pair, "side": side}


def attention(
    length: int, batch: int = 1, past: int = 0, heads: int = 8, size: int = 64, kv_heads: int = 0
) -> dict[str, Any]:
    """The operands of attention with three dimensions, what is in the cache, and what spelling it out needs."""
    keys = kv_heads or heads
    group, total, hidden = heads // keys, past + length, heads * size
    cache = {"pk": normal(batch, keys, past, size), "pv": normal(batch, keys, past, size) * np.float32(0.5)}
    return {
        "q": normal(batch, length, hidden),
        "k": normal(batch, length, keys * size),
        "v": normal(batch, length, keys * size) * np.float32(0.5),
        **(cache if past else {}),
        "sq": shape(batch, length, heads, size),
        "sk": shape(batch, length, keys, size),
        "flat": shape(batch, length, hidden),
        "apart": shape(batch, keys, 1, total, size),
        "wide": shape(batch, keys, group, total, size),
        "again": shape(batch, heads, total, size),
        "grouped": shape(batch, keys, group * length, size),
        "heads_first": shape(batch, heads, length, size),
        "w": scalar(float(1 / np.sqrt(size))),
        "last": full("int32", total - 1, batch, 1),
        "all": full("int32", total),
        "number": heads,
        "keys": keys,
        "results": "y, nk, nv" if past else "y",
        "cache": "pk, pv" if past else ", ",
        "and_cache": ", , pk, pv" if past else "",
        "and_all_before_cache": ", , , , pk, pv" if past else "",
        "as_queries": f"q4 = Reshape (q, sq) qh = {_TO_HEADS} (q4) qs = Mul (qh, w)",
        "as_keys": _heads_of("k", past),
        "as_values": _heads_of("v", past),
        "to_heads": _TO_HEADS,
    }


def _heads_of(name: str, past: int) -> str:
    """Keys or values as heads, with what is in the cache before them; their result is ``{name}h``."""
    if not past:
        return f"{name}4 = Reshape ({name}, sk) {name}h = {_TO_HEADS} ({name}4)"
    new = f"{name}4 = Reshape ({name}, sk) {name}n = {_TO_HEADS} ({name}4)"
    return f"{new} {name}h = Concat <axis = 2> (p{name}, {name}n)"


def rotary(length: int, heads: int, size: int) -> dict[str, Any]:
    """Rotary embedding of halves, of three dimensions."""
    half = size // 2
    steps = np.arange(1, half + 1, dtype=np.float32)
    angles = (np.arange(length, dtype=np.float32)[:, None] / np.float32(100.0)) * steps
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return {
        "x": normal(1, length, heads * size),
        "cos": cos,
        "sin": sin,
        "cosb": cos[None],
        "sinb": sin[None],
        "cos2": np.concatenate([cos, cos], axis=1),
        "sin2": np.concatenate([sin, sin], axis=1),
        "split": shape(1, length, heads, size),
        "flat": shape(1, length, heads * size),
        "zero": shape(0),
        "mid": shape(half),
        "end": shape(size),
        "last": shape(-1),
        "start": np.zeros((1, length), np.int64) + np.arange(length),
        "to_heads": _TO_HEADS,
    }


__all__ = [
    "attention",
    "blocks_of_groups",
    "causal",
    "causal_of_groups",
    "count",
    "cubic_phases",
    "evenly",
    "full",
    "hann",
    "integers",
    "interpolation",
    "is_positive",
    "isqrt",
    "joined",
    "magnitude",
    "matrices_between_rows",
    "middle",
    "normal",
    "quantized",
    "reshape",
    "reversed_rows",
    "rotary",
    "scalar",
    "shape",
    "siblings",
    "to",
    "transposed",
    "unpacked",
    "weight",
    "windows",
]
