"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import MICROSOFT, Call, Unknown, rule
from ortopt.graph import symbolic
from ortopt.graph.facts import Dims
from ortopt.graph.symbolic import UNKNOWN, Dim


def windows(call: Call, spatial: Dims, kernel: Sequence[Dim], dilations: Sequence[int], *, up: bool = False) -> Dims:
    """How many places a window has in each spatial dimension.

    Args:
        call: The node; asked for ``strides``, ``pads`` and ``auto_pad``.
        spatial: The dimensions that the window moves over.
        kernel: The window's sizes.
        dilations: The distances between its elements.
        up: Whether the last place is rounded up (``ceil_mode``); a window then begins inside the input or its left
            padding all the same.
    """
    count = len(spatial)
    strides = call.attribute("strides") or (1,) * count
    pads = call.attribute("pads") or (0,) * (2 * count)
    auto_pad = call.attribute("auto_pad", "NOTSET")
    if not len(kernel) == len(strides) == len(dilations) == count or len(pads) != 2 * count or min(strides) < 1:
        raise Unknown
    result: list[Dim] = []
    for axis in range(count):
        extent = symbolic.add(symbolic.mul(symbolic.sub(kernel[axis], 1), dilations[axis]), 1)
        stride = strides[axis]
        if auto_pad in {"SAME_UPPER", "SAME_LOWER"}:
            result.append(symbolic.ceildiv(spatial[axis], stride))
            continue
        before, after = (0, 0) if auto_pad == "VALID" else (pads[axis], pads[axis + count])
        room = symbolic.sub(symbolic.add(spatial[axis], before + after), extent)
        places = symbolic.add((symbolic.ceildiv if up else symbolic.floordiv)(room, stride), 1)
        if up:
            # The last window is dropped where it would begin in the right padding.
            limit = symbolic.ceildiv(symbolic.add(spatial[axis], before), stride)
            places = symbolic.minimum(places, limit)
        if isinstance(places, int) and places < 0:
            raise Unknown
        result.append(places)
    return tuple(result)


def convolved(call: Call, data: int, weights: int) -> Dims:
    """The shape of a convolution: [N, output channels, places...]."""
    x, w = call.dims(data), call.dims(weights)
    if len(x) != len(w) or len(x) < 3:
        raise Unknown
    kernel: Sequence[Dim] = call.attribute("kernel_shape") or w[2:]
    dilations = call.attribute("dilations") or (1,) * (len(x) - 2)
    return (x[0], w[0], *windows(call, x[2:], kernel, dilations))


def _partly(call: Call, data: int) -> None:
    """Batch is kept whatever else is not known."""
    dims = call.dims(data)
    if len(dims) < 3:
        raise Unknown
    call.shapes[0] = (dims[0],) + (UNKNOWN,) * (len(dims) - 1)


@rule("Conv")
def conv(call: Call) -> None:
    """[N, C, ...] with weights [M, C/group, ...] to [N, M, ...]."""
    call.types[0] = call.dtype(0)
    _partly(call, 0)
    call.shapes[0] = convolved(call, 0, 1)


@rule("FusedConv", "NhwcFusedConv", domain=MICROSOFT)
def fused_conv(call: Call) -> None:
    """As Conv; the Nhwc one has its channels last."""
    call.types[0] = call.dtype(0)
    if call.node.op_type == "FusedConv":
        call.shapes[0] = convolved(call, 0, 1)
        return
    x, w = call.dims(0), call.dims(1)
    kernel = call.attribute("kernel_shape") or w[2:]
    dilations = call.attribute("dilations") or (1,) * (len(x) - 2)
    call.shapes[0] = (x[0], *windows(call, x[1:-1], kernel, dilations), w[0])


@rule("ConvInteger")
def conv_integer(call: Call) -> None:
    """As Conv, in int32."""
    call.types[0] = ir.DataType.INT32
    call.shapes[0] = convolved(call, 0, 1)


@rule("QLinearConv")
def quantized_conv(call: Call) -> None:
    """As Conv of inputs 0 and 3, in the type of the output's zero point."""
    call.types[0] = call.dtype(7)
    call.shapes[0] = convolved(call, 0, 3)


@rule("QLinearConv", domain=MICROSOFT)
def quantized_conv_contrib(call: Call) -> None:
    """As the standard op, or with channels last."""
    call.types[0] = call.dtype(7)
    if not call.attribute("channels_last", 0):
        call.shapes[0] = convolved(call, 0, 3)
        return
    x, w = call.dims(0), call.dims(3)
    kernel = call.attribute("kernel_shape") or w[2:]
    dilations = call.attribute("dilations") or (1,) * (len(x) - 2)
    call.shapes[0] = (x[0], *windows(call, x[1:-1], kernel, dilations), w[0])


@rule("ConvTranspose")
def conv_transpose(call: Call) -> None:
    """[N, C, ...] with weights [C, M/group, ...] to [N, M, ...], the windows laid out again."""
    call.types[0] = call.dtype(0)
    _partly(call, 0)
    x, w = call.dims(0), call.dims(1)
    spatial = x[2:]
    count = len(spatial)
    channels = symbolic.mul(w[1], call.attribute("group", 1))
    shape = call.attribute("output_shape")
    if shape is not None:
        call.shapes[0] = (x[0], channels, *shape[-count:])
        return
    kernel: Sequence[Dim] = call.attribute("kernel_shape") or w[2:]
    strides = call.attribute("strides") or (1,) * count
    dilations = call.attribute("dilations") or (1,) * count
    extra = call.attribute("output_padding") or (0,) * count
    pads = call.attribute("pads") or (0,) * (2 * count)
    auto_pad = call.attribute("auto_pad", "NOTSET")
    result: list[Dim] = []
    for axis in range(count):
        if auto_pad in {"SAME_UPPER", "SAME_LOWER"}:
            result.append(symbolic.mul(spatial[axis], strides[axis]))
            continue
        removed = 0 if auto_pad == "VALID" else pads[axis] + pads[axis + count]
        laid = symbolic.mul(symbolic.sub(spatial[axis], 1), strides[axis])
        extent = symbolic.add(symbolic.mul(symbolic.sub(kernel[axis], 1), dilations[axis]), 1)
        result.append(symbolic.add(symbolic.add(laid, extent), extra[axis] - removed))
    call.shapes[0] = (x[0], channels, *result)


@rule("MaxPool", "AveragePool", "LpPool")
def pool(call: Call) -> None:
    """[N, C, ...] to [N, C, places...]; MaxPool has indices too."""
    call.types[0] = call.dtype(0)
    call.set(1, ir.DataType.INT64)
    dims = call.dims(0)
    spatial = dims[2:]
    if not spatial:
        raise Unknown
    call.shapes[0] = dims[:2] + (UNKNOWN,) * len(spatial)
    kernel: Sequence[Dim] = call.attribute("kernel_shape")
    dilations = call.attribute("dilations") or (1,) * len(spatial)
    up = bool(call.attribute("ceil_mode", 0))
    result = dims[:2] + windows(call, spatial, kernel, dilations, up=up)
    call.shapes[0] = result
    call.set(1, ir.DataType.INT64, result)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(call: Call) -> None:
    """[N, C, 1, ...]."""
    call.types[0] = call.dtype(0)
    dims = call.dims(0)
    call.shapes[0] = dims[:2] + (1,) * (len(dims) - 2)


@rule("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT)
def quantized_pool(call: Call) -> None:
    """As the float op; the channels may be last."""
    call.types[0] = call.dtype(0)
    if call.attribute("channels_last", 0):
        raise Unknown
    if "Global" in call.node.op_type:
        global_pool(call)
    else:
        pool(call)


@rule("MaxUnpool")
def max_unpool(call: Call) -> None:
    """The rank of the input; the shape of the third input where it is there."""
    call.types[0] = call.dtype(0)
    call.shapes[0] = call.elements(2) if call.has(2) else (*call.dims(0)[:2], *(UNKNOWN,) * (call.rank(0) - 2))


@rule("MaxRoiPool")
def max_roi_pool(call: Call) -> None:
    """[regions, C, pooled shape]."""
    call.types[0] = call.dtype(0)
    call.shapes[0] = (call.dims(1)[0], call.dims(0)[1], *call.attribute("pooled_shape"))


@rule("RoiAlign")
def roi_align(call: Call) -> None:
    """[regions, C, output height, output width]."""
    call.types[0] = call.dtype(0)
    size = (call.attribute("output_height", 1), call.attribute("output_width", 1))
    call.shapes[0] = (call.dims(1)[0], call.dims(0)[1], *size)
