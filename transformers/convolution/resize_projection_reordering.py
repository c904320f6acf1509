"""A 1x1 convolution of what was enlarged is computed at the small size: both are linear, along different axes.

Decoders for segmentation and detection enlarge several feature maps, concatenate and project them (SegFormer's
head, feature pyramids): the other way round, the projection reads fewer pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.node_sizes import evaluated
from ortopt.framework.fusions import places_of
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    array_of,
    attribute,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    need_fixed,
    opset,
    optional,
    rank,
    same_dim,
    small_array,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.convolutions import need_points, separate_activation
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

OLDEST_OPSET = 11

RESIZE, ADD, CONCAT = 40, 15, 15
"""What an element of a result costs, in multiplications with addition of a convolution: measured on a CPU."""

MAX_SHARE_OF_WORK = 0.9
"""What the other order must cost at most, compared with this one."""

LAST = 1 << 31
"""An end of a Slice behind all that a shape has."""

_NOT_LINEAR = ("tf_crop_and_resize", "tf_half_pixel_for_nn")


class Part(Struct, frozen=True):
    """What is concatenated.

    Attributes:
        source: The feature map that is convolved instead.
        channels: How many it has.
        resize: The node that enlarges it, or None.
        share: Its size as a share of the result's.
    """

    source: ir.Value
    channels: int
    resize: ir.Node | None
    share: float


class ResizeProjectionReordering(RewriteRule[Match]):
    """``Conv(Concat(x, Resize(z)))`` with a 1x1 kernel → ``Conv(x) + Resize(Conv(z))``, where that is less work."""

    levels = (TransformerLevel.LEVEL3,)
    after = ("interpolated_conv_decomposition",)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    needs = ("Resize",)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A convolution of single points, and parts of which some are enlarged along spatial axes only."""
        x, weight = inputs(root, 2)
        need(opset(root, "") >= OLDEST_OPSET, "before opset 11, a Resize says less", root)
        need(optional(root, 3) is None, "it adds another value", root)
        need_points(root, weight)
        nodes: list[ir.Node] = [root]
        values: Sequence[ir.Value] = (x,)
        if is_op(concat := x.producer(), "Concat"):
            alone = is_used_once(x) and ops.Concat(concat).axis_of(rank(x)) == 1
            need(alone, "no channels are joined for it alone", concat)
            nodes.append(concat)
            values = inputs(concat, len(concat.inputs))
        parts = tuple(_part(value) for value in values)
        nodes += [part.resize for part in parts if part.resize is not None]
        need(len(set(nodes)) == len(nodes), "a part occurs twice", root)
        outputs = tensor_of(weight).shape.numpy()[0]
        need(any(part.resize is not None for part in parts), "nothing is enlarged before", x)
        need(
            _cost_after(parts, outputs) <= MAX_SHARE_OF_WORK * _cost_before(parts, outputs),
            "it would be no less work",
            root,
        )
        return Match(tuple(nodes), lambda: _projected(root, parts))


def _projected(root: ir.Node, parts: Sequence[Part]) -> ir.Value:
    """A convolution for each part, and what enlarges and adds their results; the first one adds the bias."""
    weight = array_of(root.inputs[1])
    kind = tensor_of(root.inputs[1]).dtype
    bias = root.inputs[2:3]
    plain = [each for name, each in root.attributes.items() if not name.startswith("activation")]
    total: ir.Value | None = None
    start = 0
    for part in parts:
        own = constant(np.ascontiguousarray(weight[:, start : start + part.channels]), kind)
        start += part.channels
        value = ir.Node("", "Conv", [part.source, own, *bias], plain).outputs[0]
        bias = ()
        if part.resize is not None:
            value = _resized(part.resize, value, weight.shape[0])
        total = value if total is None else ir.node("Add", [total, value]).outputs[0]
    assert total is not None
    return separate_activation(root, total)


def _part(value: ir.Value) -> Part:
    resize = value.producer()
    shape = dims(value)
    (channels,) = need_fixed(shape[1:2], "the channels are not known", value)
    if not is_op(resize, "Resize") or not is_used_once(value):
        return Part(value, channels, None, 1.0)
    (source,) = inputs(resize, 1)
    before = dims(source, len(shape))
    need(all(map(same_dim, before[:2], shape[:2])), "it resizes batch or channels", resize)
    mode = attribute(resize, "coordinate_transformation_mode", "half_pixel")
    need(mode not in _NOT_LINEAR, f"{mode} is not linear, or moves channels", resize)
    share = _share(resize, before, shape)
    return Part(source, channels, resize, share)


def _share(resize: ir.Node, before: Sequence[Dim], after: Sequence[Dim]) -> float:
    """The size before as a share of that after; batch and channels are checked to be left alone."""
    scales = optional(resize, 2)
    axes = ops.Resize(resize).axes
    if scales is not None and tensor_of(scales).size > 0:
        listed = small_array(scales).astype(np.float64).reshape(-1)
        need(len(listed) == len(axes), "the axes do not fit", resize)
        kept = [scale for at, scale in zip(axes, listed, strict=True) if at < 2]
        need(all(scale == 1 for scale in kept), "it resizes batch or channels", resize)
        return 1 / float(np.prod(listed))
    need(attribute(resize, "keep_aspect_ratio_policy", "stretch") == "stretch", "the sizes are only bounds", resize)
    areas = {"before": before[2:], "after": after[2:]}
    shares = []
    for place in places_of(resize, scope.of_node(resize).options):
        known = evaluated(areas, place)
        need(len(known) == len(areas) and min(known["after"]) > 0, "it is not known how much it enlarges", resize)
        shares += [small / large for small, large in zip(known["before"], known["after"], strict=True)]
    return max(shares)


def _cost_before(parts: Sequence[Part], outputs: int) -> float:
    """What an element of the result's size costs, over all channels."""
    channels = sum(part.channels for part in parts)
    enlarged = sum(part.channels for part in parts if part.resize is not None)
    return channels * outputs + enlarged * RESIZE + (channels * CONCAT if len(parts) > 1 else 0)


def _cost_after(parts: Sequence[Part], outputs: int) -> float:
    products = sum(part.channels * outputs * part.share for part in parts)
    enlarged = sum(outputs for part in parts if part.resize is not None)
    return products + enlarged * RESIZE + (len(parts) - 1) * outputs * ADD


def _resized(old: ir.Node, value: ir.Value, channels: int) -> ir.Value:
    """A value resized as another was, with its own number of channels."""
    operands = list(old.inputs)
    operands[0] = value
    sizes, source = optional(old, 3), old.inputs[0]
    if sizes is not None and source is not None:
        own = dims(source)
        named = [position for position, at in enumerate(ops.Resize(old).axes) if at == 1]
        if named and not same_dim(own[1], channels):
            operands[3] = _with_element(sizes, named[0], channels)
    return ops.copied(old, operands).outputs[0]


def _with_element(sizes: ir.Value, position: int, number: int) -> ir.Value:
    """A vector with another number at a position."""
    known = contents(sizes)
    if known is not None and all(isinstance(size, int) for size in known):
        return constant([number if at == position else size for at, size in enumerate(known) if isinstance(size, int)])
    parts = [
        ir.node("Slice", [sizes, constant([start]), constant([end])]).outputs[0]
        for start, end in ((0, position), (position + 1, LAST))
    ]
    return ir.node("Concat", [parts[0], constant([number]), parts[1]], {"axis": 0}).outputs[0]
