"""Calls of convolutions and poolings."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzzing.calls.draw import MICROSOFT, Array, Draw, Drawn, drawing

_AUTO = (None, None, None, "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def _window(d: Draw, kernel: list[int], *, dilated: bool = True) -> dict[str, Any]:
    """Strides, pads, dilations and automatic padding; a stride of 0 would end the process."""
    rank = len(kernel)
    given: dict[str, Any] = {"auto_pad": d.one(*_AUTO)}
    if d.chance(0.6):
        given["strides"] = [d.one(1, 1, 2, 3, 5) for _ in range(rank)]
    if d.chance(0.5) and (given["auto_pad"] in (None, "NOTSET") or d.chance(0.2)):
        given["pads"] = [d.number(0, max(0, size - 1) if d.chance(0.9) else size + 1) for size in kernel * 2]
    if dilated and d.chance(0.5):
        given["dilations"] = [d.one(1, 1, 2, 3) for _ in range(rank)]
    return given


def _spatial(d: Draw, rank: int) -> tuple[int, ...]:
    return tuple(d.one(1, 2, 3, 4, 5, 6, 7, 9, 11) if d.chance(0.97) else 0 for _ in range(rank))


def _kernel(d: Draw, rank: int) -> list[int]:
    return [d.one(1, 1, 2, 2, 3, 3, 4, 5) for _ in range(rank)]


def _convolution(d: Draw, *, last: bool = False) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """The shapes of the data and of the weights, and the attributes."""
    rank = 2 if last else d.one(1, 2, 2, 3)
    kernel = _kernel(d, rank)
    group = d.one(1, 1, 1, 2, 3)
    n, c, m = d.size(), d.one(1, 2, 3), group * d.one(1, 2)
    x = (n, *_spatial(d, rank), c * group) if last else (n, c * group, *_spatial(d, rank))
    given = _window(d, kernel) | {"group": group if group > 1 or d.chance(0.3) else None}
    if d.chance(0.5):
        given["kernel_shape"] = kernel
    return x, (m, c, *kernel), given


@drawing("Conv")
def conv(d: Draw) -> Drawn:
    """In one to three dimensions."""
    x, w, given = _convolution(d)
    bias = d.tensor("float", w[:1]) if d.chance(0.4) else None
    return d.call([d.tensor("float", x), d.tensor("float", w), bias], **given)


@drawing("FusedConv", domain=MICROSOFT)
def fused_conv(d: Draw) -> Drawn:
    """With an activation."""
    x, w, given = _convolution(d)
    return d.call([d.tensor("float", x), d.tensor("float", w)], **given, activation="Relu")


@drawing("NhwcFusedConv", domain=MICROSOFT)
def nhwc_fused_conv(d: Draw) -> Drawn:
    """Channels last, in float16."""
    x, w, given = _convolution(d, last=True)
    return d.call([d.tensor("float16", x), d.tensor("float16", w)], **given)


@drawing("ConvInteger")
def conv_integer(d: Draw) -> Drawn:
    """Of bytes."""
    x, w, given = _convolution(d)
    zero = d.tensor("uint8", ()) if d.chance(0.5) else None
    return d.call([d.tensor("uint8", x), d.tensor("uint8", w), zero], **given)


def _scale() -> Array:
    return np.array(0.5, np.float32)


def _quantized_conv(d: Draw, *, last: bool, **more: Any) -> Drawn:
    x, w, given = _convolution(d, last=last)
    zero = np.array(1, np.uint8)
    return d.call(
        [d.tensor("uint8", x), _scale(), zero, d.tensor("uint8", w), _scale(), zero, _scale(), zero], **given, **more
    )


@drawing("QLinearConv")
def quantized_conv(d: Draw) -> Drawn:
    """Of bytes with scales."""
    return _quantized_conv(d, last=False)


@drawing("QLinearConv", domain=MICROSOFT)
def quantized_conv_contrib(d: Draw) -> Drawn:
    """Channels last too."""
    last = d.chance(0.6)
    return _quantized_conv(d, last=last, channels_last=int(last))


@drawing("ConvTranspose")
def conv_transpose(d: Draw) -> Drawn:
    """With padding of the output, and shapes that ask for padding."""
    rank = d.one(1, 2, 2, 3)
    kernel = _kernel(d, rank)
    group = d.one(1, 1, 2)
    n, c, m = d.size(), d.one(1, 2), d.one(1, 2)
    given = _window(d, kernel) | {"group": group}
    spatial = _spatial(d, rank)
    strides = given.get("strides", [1] * rank)
    if d.chance(0.3):
        given["output_padding"] = [d.number(0, max(stride - 1, 1)) for stride in strides]
    if d.chance(0.3):
        spread = [(dim - 1) * s + k for dim, s, k in zip(spatial, strides, kernel, strict=True)]
        given["output_shape"] = [max(1, one + d.number(-2, 2)) for one in spread]
    if d.chance(0.5):
        given["kernel_shape"] = kernel
    bias = d.tensor("float", (m * group,)) if d.chance(0.3) else None
    return d.call(
        [d.tensor("float", (n, c * group, *spatial)), d.tensor("float", (c * group, m, *kernel)), bias], **given
    )


def _pooling(d: Draw, *, dilated: bool, ceil: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    rank = d.one(1, 2, 2, 3)
    kernel = _kernel(d, rank)
    given = _window(d, kernel, dilated=dilated) | {"kernel_shape": kernel}
    if ceil:
        given["ceil_mode"] = d.one(None, 0, 1, 1)
    return (d.size(), d.one(1, 2, 3), *_spatial(d, rank)), given


@drawing("MaxPool", "AveragePool", "LpPool")
def pool(d: Draw) -> Drawn:
    """Each attribute from the opset on that has it."""
    since = {"MaxPool": (10, 10), "AveragePool": (19, 10), "LpPool": (18, 18)}[d.op]
    shape, given = _pooling(d, dilated=d.opset >= since[0], ceil=d.opset >= since[1])
    if d.op == "MaxPool":
        outputs = d.number(1, 2) if d.opset >= 8 else 1
        dtype = d.one("float", "float", "uint8", "int8", "double") if d.opset >= 12 else "float"
        order = d.one(None, 0, 1) if outputs == 2 else None
        return d.call([d.tensor(dtype, shape)], outputs, **given, storage_order=order)
    if d.op == "AveragePool" and d.opset >= 7:
        given["count_include_pad"] = d.one(None, 0, 1)
    return d.call([d.tensor("float", shape)], **given)


@drawing("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(d: Draw) -> Drawn:
    """Of every rank from 3 on."""
    return d.call([d.tensor("float", d.shape(2, 5))])


@drawing("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT)
def quantized_pool(d: Draw) -> Drawn:
    """Channels first and last."""
    shape, given = _pooling(d, dilated=False, ceil=True)
    # A window larger than what it moves over ends the process.
    shape = (*shape[:2], *(dim + size for dim, size in zip(shape[2:], given["kernel_shape"], strict=True)))
    last = d.one(None, 0, 1)
    if last:
        shape = (shape[0], *shape[2:], shape[1])
    if "Global" in d.op:
        given = {}
    zero = np.array(1, np.uint8)
    return d.call([d.tensor("uint8", shape), _scale(), zero, _scale(), zero], **given, channels_last=last)


@drawing("MaxUnpool")
def max_unpool(d: Draw) -> Drawn:
    """With and without the shape."""
    rank = d.one(1, 2)
    kernel = _kernel(d, rank)
    n, c, spatial = d.size(zero=False), d.size(zero=False), tuple(d.number(1, 3) for _ in range(rank))
    x = d.tensor("float", (n, c, *spatial))
    places = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    given: dict[str, Any] = {"strides": [d.one(1, 2, 3) for _ in range(rank)] if d.chance(0.6) else None}
    if d.chance(0.3):
        given["pads"] = [d.number(0, 1) for _ in range(2 * rank)]
    full = d.ints([n, c, *(dim * 5 for dim in spatial)]) if d.chance(0.4) else None
    return d.call([x, places, full], kernel_shape=kernel, **given)


@drawing("MaxRoiPool")
def max_roi_pool(d: Draw) -> Drawn:
    """Regions of a picture."""
    regions = np.array([[0, 0, 0, 2, 2]] * d.number(1, 3), np.float32)
    x = d.tensor("float", (1, d.size(zero=False), 4, 5))
    return d.call([x, regions], pooled_shape=[d.number(1, 3), d.number(1, 3)], spatial_scale=d.one(None, 0.5))


@drawing("RoiAlign")
def roi_align(d: Draw) -> Drawn:
    """Regions of a picture, with their batch indices."""
    count = d.number(0, 3)
    regions = np.array([[0, 0, 2, 2]] * count, np.float32).reshape(count, 4)
    x = d.tensor("float", (1, d.size(zero=False), 4, 5))
    size: dict[str, Any] = {"output_height": d.one(None, 1, 3), "output_width": d.one(None, 1, 2)}
    return d.call([x, regions, np.zeros(count, np.int64)], **size)
