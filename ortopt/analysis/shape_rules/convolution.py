"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.shape_rules.registry import Call, Unknown, rule, truncated
from ortopt.graph import symbolic
from ortopt.graph.facts import Dims
from ortopt.graph.symbolic import UNKNOWN, Dim
from ortopt.semantics.domains import MICROSOFT


class Window(Struct, frozen=True):
    """How a window moves along one axis."""

    size: Dim
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def extent(self) -> Dim:
        """From its first element to its last."""
        return symbolic.add(symbolic.mul(symbolic.sub(self.size, 1), self.dilation), 1)


def windows(call: Call, count: int, kernel: Sequence[Dim], dilations: Sequence[int]) -> list[Window]:
    """The windows of a node, axis by axis.

    Args:
        call: The node; asked for ``strides``, ``pads`` and ``auto_pad``.
        count: How many axes a window moves along.
        kernel: The window's sizes.
        dilations: The distances between its elements.
    """
    strides = call.attribute("strides") or (1,) * count
    pads = call.attribute("pads") or (0,) * (2 * count)
    if call.attribute("auto_pad", "NOTSET") != "NOTSET":
        pads = (0,) * (2 * count)
    if not len(kernel) == len(strides) == len(dilations) == count or len(pads) != 2 * count or min(strides) < 1:
        raise Unknown
    return [
        Window(kernel[axis], strides[axis], dilations[axis], pads[axis], pads[axis + count]) for axis in range(count)
    ]


def _is_same(call: Call) -> bool:
    return call.attribute("auto_pad", "NOTSET") in {"SAME_UPPER", "SAME_LOWER"}


def _convolved(call: Call, dim: Dim, window: Window) -> Dim:
    """How many places the window of a convolution has in a dimension."""
    if _is_same(call):
        return symbolic.ceildiv(dim, window.stride)
    room = symbolic.sub(symbolic.add(dim, window.before + window.after), window.extent)
    places = symbolic.add(symbolic.floordiv(room, window.stride), 1)
    if isinstance(places, int) and places < 0:
        raise Unknown
    if not isinstance(places, int) and not symbolic.at_least(places, 1):
        call.host.fails_without(call.node, places)  # runtimes refuse an image that is smaller than the window
    return places


def _pooled(call: Call, dim: Dim, window: Window, up: bool) -> Dim:
    """How many places the window of a pooling has in a dimension, as ONNX Runtime counts them.

    Args:
        call: The node.
        dim: The dimension.
        window: The window.
        up: Whether the last place is rounded up (``ceil_mode``); a window then begins inside the input or its left
            padding all the same.
    """
    before, padding = window.before, symbolic.add(window.before, window.after)
    if _is_same(call):
        target = symbolic.ceildiv(dim, window.stride)
        if window.dilation == 1:
            return target
        if not isinstance(dim, int) or not isinstance(target, int) or not isinstance(window.size, int):
            return UNKNOWN
        # What is added makes room for the window as if it had no gaps.
        padding = (target - 1) * window.stride + window.size - dim
        upper = call.attribute("auto_pad") == "SAME_UPPER"
        before = truncated(padding if upper else padding + 1, 2)
    room = symbolic.sub(symbolic.add(dim, padding), window.extent)
    if not up:
        places = symbolic.add(call.quotient(room, window.stride), 1)
    else:
        # The last window is dropped where it would begin in the right padding.
        limit = symbolic.ceildiv(symbolic.add(dim, before), window.stride)
        places = symbolic.minimum(symbolic.add(symbolic.ceildiv(room, window.stride), 1), limit)
    if isinstance(places, int) and places < 0:
        raise Unknown
    return places


def convolved(call: Call, data: int, weights: int, *, last: bool = False) -> Dims:
    """The shape of a convolution: [N, output channels, places...], or with the channels last."""
    x, w = call.dims(data), call.dims(weights)
    if len(x) != len(w) or len(x) < 3:
        raise Unknown
    kernel: Sequence[Dim] = call.attribute("kernel_shape") or w[2:]
    dilations = call.attribute("dilations") or (1,) * (len(x) - 2)
    moved = windows(call, len(x) - 2, kernel, dilations)
    places = [_convolved(call, dim, window) for dim, window in zip(x[1:-1] if last else x[2:], moved, strict=True)]
    return (x[0], *places, w[0]) if last else (x[0], w[0], *places)


def _partly(call: Call, data: int) -> None:
    """Batch is kept whatever else is not known."""
    dims = call.dims(data)
    if len(dims) < 3:
        raise Unknown
    call.shapes[0] = (dims[0],) + (UNKNOWN,) * (len(dims) - 1)


@rule("Conv", typed=0)
def conv(call: Call) -> None:
    """[N, C, ...] with weights [M, C/group, ...] to [N, M, ...]."""
    _partly(call, 0)
    call.shapes[0] = convolved(call, 0, 1)


@rule("FusedConv", "NhwcFusedConv", domain=MICROSOFT, typed=0)
def fused_conv(call: Call) -> None:
    """As Conv; the Nhwc one has its channels last."""
    call.shapes[0] = convolved(call, 0, 1, last=call.node.op_type == "NhwcFusedConv")


@rule("ConvInteger", typed=ir.DataType.INT32)
def conv_integer(call: Call) -> None:
    """As Conv, in int32."""
    call.shapes[0] = convolved(call, 0, 1)


@rule("QLinearConv", typed=7)
@rule("QLinearConv", domain=MICROSOFT, typed=7)
def quantized_conv(call: Call) -> None:
    """As Conv of inputs 0 and 3, in the type of the output's zero point; ONNX Runtime's may have its channels last."""
    call.shapes[0] = convolved(call, 0, 3, last=bool(call.attribute("channels_last", 0)))


@rule("ConvTranspose", typed=0)
def conv_transpose(call: Call) -> None:
    """[N, C, ...] with weights [C, M/group, ...] to [N, M, ...], the windows laid out again."""
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
        laid = symbolic.mul(symbolic.sub(spatial[axis], 1), strides[axis])
        extent = symbolic.add(symbolic.mul(symbolic.sub(kernel[axis], 1), dilations[axis]), 1)
        whole = symbolic.add(symbolic.add(laid, extent), extra[axis])
        if auto_pad in {"SAME_UPPER", "SAME_LOWER"}:  # cut to this size; what is smaller is not filled
            result.append(symbolic.minimum(whole, symbolic.mul(spatial[axis], strides[axis])))
            continue
        result.append(symbolic.sub(whole, 0 if auto_pad == "VALID" else pads[axis] + pads[axis + count]))
    call.shapes[0] = (x[0], channels, *result)


@rule("MaxPool", "AveragePool", "LpPool", typed=0)
def pool(call: Call) -> None:
    """[N, C, ...] to [N, C, places...]; MaxPool has indices too."""
    call.set(1, ir.DataType.INT64)
    dims = call.dims(0)
    spatial = dims[2:]
    if not spatial:
        raise Unknown
    call.shapes[0] = dims[:2] + (UNKNOWN,) * len(spatial)
    kernel: Sequence[Dim] = call.attribute("kernel_shape")
    dilations = call.attribute("dilations") or (1,) * len(spatial)
    up = call.attribute("ceil_mode", 0) == 1
    moved = windows(call, len(spatial), kernel, dilations)
    result = dims[:2] + tuple(_pooled(call, dim, window, up) for dim, window in zip(spatial, moved, strict=True))
    call.shapes[0] = result
    call.set(1, ir.DataType.INT64, result)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", typed=0)
def global_pool(call: Call) -> None:
    """[N, C, 1, ...]."""
    dims = call.dims(0)
    call.shapes[0] = dims[:2] + (1,) * (len(dims) - 2)


@rule("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT, typed=0)
def quantized_pool(call: Call) -> None:
    """As the float op; the channels may be last."""
    if call.attribute("channels_last", 0):
        raise Unknown
    if "Global" in call.node.op_type:
        global_pool(call)
    else:
        pool(call)


@rule("MaxUnpool", typed=0)
def max_unpool(call: Call) -> None:
    """The rank of the input; the shape of the third input where it is there."""
    call.shapes[0] = call.elements(2) if call.has(2) else (*call.dims(0)[:2], *(UNKNOWN,) * (call.rank(0) - 2))


@rule("MaxRoiPool", typed=0)
def max_roi_pool(call: Call) -> None:
    """[regions, C, pooled shape]."""
    call.shapes[0] = (call.dims(1)[0], call.dims(0)[1], *call.attribute("pooled_shape"))


@rule("RoiAlign", typed=0)
def roi_align(call: Call) -> None:
    """[regions, C, output height, output width]."""
    size = (call.attribute("output_height", 1), call.attribute("output_width", 1))
    call.shapes[0] = (call.dims(1)[0], call.dims(0)[1], *size)
