"""Ops on images: convolutions, pools, pads, and changes of their size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuzzing.families.elementwise import broadcasts
from fuzzing.families.normalizations import batch_normalization
from fuzzing.families.registry import family
from fuzzing.writer import F32, F64, I32, I64, Attributes, Value, Writer


def _conv_dims(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    return (size + before + after - (kernel - 1) * dilation - 1) // stride + 1


def convolution(w: Writer, x: Value, *, show: bool = True) -> Value:
    """Write a Conv by constant weights."""
    w.require(x.rank in (3, 4) and not x.varies[1] and x.shape[1] > 0 and x.dtype in (F32, F64))
    channels, spatial = x.shape[1], x.rank - 2
    groups = w.usual(1, *(g for g in (2, 3, 4, channels) if channels % g == 0), odds=0.7)
    out = groups * w.one(1, 2)
    kernel = [w.one(1, 1, 2, 3) for _ in range(spatial)]
    strides = [w.usual(1, 2) for _ in range(spatial)]
    dilations = [w.usual(1, 2, odds=0.9) for _ in range(spatial)]
    pads = [w.one(0, 0, 1) for _ in range(2 * spatial)]
    dims = [
        _conv_dims(x.shape[2 + i], kernel[i], strides[i], dilations[i], pads[i], pads[i + spatial])
        for i in range(spatial)
    ]
    w.require(min(dims) > 0)
    weight = w.noise((out, channels // groups, *kernel), x.dtype, 0.5)
    bias = w.noise((out,), x.dtype) if w.chance(0.5) else None
    attributes: Attributes = {"group": groups, "strides": strides, "dilations": dilations}
    attributes |= {"kernel_shape": kernel} if w.chance(0.7) else {}
    attributes |= {"pads": pads} if any(pads) or w.chance(0.3) else {}
    attributes = {name: item for name, item in attributes.items() if item != 1}
    varies = (x.varies[0], False, *x.varies[2:])
    return w.add("Conv", [x, weight, bias], (x.shape[0], out, *dims), varies, show=show, **attributes)


def pool(w: Writer, x: Value) -> Value:
    """Write a pooling op."""
    w.require(x.rank == 4 and x.dtype in (F32, F64))
    op = w.one("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if op.startswith("Global"):
        w.require(x.size > 0 and x.dtype == F32)
        return w.add(op, [x], (*x.shape[:2], 1, 1), (*x.varies[:2], False, False))
    kernel, strides, pads = [w.one(1, 2, 2) for _ in "hw"], [w.one(1, 2) for _ in "hw"], [0, 0, 0, 0]
    if w.chance(0.3):
        pads = [w.one(0, kernel[i % 2] - 1) for i in range(4)]
    dims = [_conv_dims(x.shape[2 + i], kernel[i], strides[i], 1, pads[i], pads[i + 2]) for i in range(2)]
    w.require(min(dims) > 0 and x.size > 0)
    extra: Attributes = {"count_include_pad": w.one(0, 1)} if op == "AveragePool" and w.chance(0.6) else {}
    return w.add(op, [x], (*x.shape[:2], *dims), x.varies, kernel_shape=kernel, strides=strides, pads=pads, **extra)


def image(w: Writer) -> Value:
    """A value of rank 4 with fixed channels."""
    return w.pick((F32, F32, F32, F64), (4,), lambda one: not one.varies[1] and one.size > 0)


def pad(w: Writer, x: Value, amounts: Sequence[int], filling: float = 0.0, mode: str = "constant") -> Value:
    """Write a Pad in one of its spellings."""
    rank = x.rank
    shape = [dim + amounts[i] + amounts[rank + i] for i, dim in enumerate(x.shape)]
    w.require(min(shape, default=1) >= 0)
    value = w.scalar(filling, x, rank=0) if filling or w.chance(0.4) else None
    mode_given: Attributes = {"mode": mode} if mode != "constant" or w.chance(0.3) else {}
    if w.opset >= 18 and w.chance(0.3):
        axes = [i for i in range(rank) if amounts[i] or amounts[rank + i] or w.chance(0.3)]
        w.random.shuffle(axes)
        given = [amounts[i] for i in axes] + [amounts[rank + i] for i in axes]
        where = w.ints(*(axis - w.one(0, rank) for axis in axes))
        if w.chance(0.2):  # ORT reads constant axes as int64, computed ones as they are
            where = w.add("Cast", [where], dtype=I32, to=I32, show=False)
        return w.add("Pad", [x, w.ints(*given), value, where], shape, x.varies, **mode_given)
    return w.add("Pad", [x, w.ints(*amounts), value], shape, x.varies, **mode_given)


@family(1.5)
def _pad(w: Writer) -> None:
    x = w.pick((F32, F32, F64, I64, I32), range(1, 5), lambda one: one.size > 0)
    amounts = [w.one(0, 0, 1, 2, -1) for _ in range(2 * x.rank)]
    if w.chance(0.3):
        amounts = [0] * len(amounts)
    mode = w.usual("constant", "edge", "reflect", odds=0.7)
    if mode == "reflect":
        amounts = [max(0, min(amount, x.shape[i % x.rank] - 1)) for i, amount in enumerate(amounts)]
    pad(w, x, amounts, w.usual(0.0, 1.0), mode)


@family(4)
def _image(w: Writer) -> None:
    x = image(w)
    if w.chance(0.3):
        spatial = [w.one(0, 1, 1) for _ in range(4)]
        edges = [w.usual(0, 1, odds=0.95) for _ in range(4)]
        amounts = [*edges[:2], *spatial[:2], *edges[2:], *spatial[2:]]
        x = pad(w, x, amounts, w.usual(0.0, 1.0), w.usual("constant", "edge"))
    if w.chance(0.25):
        y = pool(w, x)
    elif w.chance(0.15):
        channels, out, kernel, stride = x.shape[1], w.one(1, 2, 3), w.one(1, 2, 3), w.one(1, 2)
        groups = w.usual(1, *(g for g in (2, 3) if channels % g == 0))
        weight = w.noise((channels, out, kernel, kernel), x.dtype, 0.5)
        dims = [(dim - 1) * stride + kernel for dim in x.shape[2:]]
        bias = w.noise((out * groups,), x.dtype) if w.chance(0.5) else None
        shape, varies = (x.shape[0], out * groups, *dims), (x.varies[0], False, *x.varies[2:])
        y = w.add("ConvTranspose", [x, weight, bias], shape, varies, strides=[stride] * 2, group=groups)
    else:
        y = convolution(w, x, show=w.chance(0.15))
    _after_convolution(w, y)


def _after_convolution(w: Writer, y: Value) -> None:
    for _ in range(w.one(0, 1, 1, 2)):
        n = y.shape[1]
        what = w.one("bn", "bn", "add", "add", "mul", "mul", "act", "act", "residual")
        ones = (1,) * (y.rank - 2)
        if what == "bn":
            y = batch_normalization(w, y, show=w.chance(0.3))
        elif what in ("add", "mul"):
            op = w.one("Add", "Sub") if what == "add" else w.one("Mul", "Div")
            last = () if y.varies[-1] else y.shape[-1:]
            shape = w.usual((n, *ones), (1, n, *ones), (), (1,), last, (1, 1, n, *ones), odds=0.7)
            content = w.noise(shape, y.dtype) if w.chance(0.8) or not n else w.special(shape, y.dtype)
            a, b = (y, content) if w.chance(0.75) else (content, y)
            w.require(broadcasts(a, b))
            y = w.elementwise(op, a, b, show=w.chance(0.3))
            w.require(y.rank > 2 and y.shape[1] == n)
        elif what == "act":
            op = w.one("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip", "Elu")
            if op == "Clip":
                y = w.add("Clip", [y, w.scalar(0, y, rank=0), w.scalar(w.one(6, 1), y, rank=0)])
            else:
                y = w.add(op, [y], show=w.chance(0.3))
        else:
            y = w.either("Add", y, w.like(y), show=w.chance(0.3))
    w.show(y)


@family(0.7)
def _resize(w: Writer) -> None:
    x = image(w)
    w.require(x.dtype == F32)
    factor = w.usual(2.0, 1.0, 0.5)
    mode = w.one("nearest", "nearest", "linear", "cubic")
    attributes: Attributes = {"coordinate_transformation_mode": w.one("asymmetric", "half_pixel", "align_corners")}
    if mode == "nearest":
        attributes["nearest_mode"] = w.one("floor", "round_prefer_floor")
    shape = (*x.shape[:2], *(int(dim * factor) for dim in x.shape[2:]))
    w.require(min(shape) > 0)
    if w.chance(0.3) and x.static:
        given = [x, None, None, w.ints(*shape)]
    else:
        given = [x, None, w.constant(np.array([1, 1, factor, factor], np.float32))]
    w.add("Resize", given, shape, x.varies, mode=mode, **attributes)


@family(0.7)
def _depth(w: Writer) -> None:
    x = image(w)
    if x.shape[1] % 4 == 0 and w.chance(0.5):
        shape = (x.shape[0], x.shape[1] // 4, *(dim * 2 for dim in x.shape[2:]))
        w.add("DepthToSpace", [x], shape, x.varies, blocksize=2, mode=w.one("DCR", "CRD"))
    elif all(dim % 2 == 0 for dim in x.shape[2:]) and not any(x.varies[2:]):
        shape = (x.shape[0], x.shape[1] * 4, *(dim // 2 for dim in x.shape[2:]))
        w.add("SpaceToDepth", [x], shape, x.varies, blocksize=2)
