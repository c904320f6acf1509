"""Images that convolutions keep in blocks of channels, and Transposes that ONNX Runtime takes into its reorderings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import onnx_ir as ir
from msgspec import structs

from ortopt import ops
from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.graph.match import Dim, dims, inputs, is_op, is_used_once, need, producer, same_dim, shape_of, users
from ortopt.patterns.permutations import moves_elements
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import (
    CONVOLUTIONS,
    TO_CHANNELS_FIRST,
    TO_CHANNELS_LAST,
    channels_first,
    channels_last,
    convolves,
    image_dims,
)
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule
from ortopt.views.axes import LONGEST, Axis, Group, View, all_above, all_below, leaves
from ortopt.views.emission import chain
from ortopt.views.index_map import identity, reordered, reshaped, same, whole
from ortopt.views.layouts import Plan, build, plan
from ortopt.views.reading import through

NO_ROWS = "the rows are not all channels of each pixel"


class ReshapeTransposeReordering(CpuRule[Match]):
    """``Reshape(Transpose(x))`` → ``Transpose(Reshape(x))`` for rows that become an image of a convolution.

    ONNX Runtime reorders channels that are last into its blocked layout, and back, without a Transpose of its own.

    It sees that where the Transpose of an image is next to a convolution. Transformers for images keep a row for each
    pixel and export the Transpose of these rows, with a Reshape to the image between it and the convolution.

    And ``Transpose(Reshape(x))`` → ``Reshape(Transpose(x))`` for such an image that becomes rows. The same bits.
    """

    after = ("transpose_optimizer",)
    roots = ("Transpose", *sorted(RESHAPING))
    needs = CONVOLUTIONS
    opsets = (5, NEWEST_OPSET)
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Both nodes, next to a convolution in blocks."""
        return _rows_of_image(root) if is_op(root, "Transpose") else _image_of_rows(root)


def _image_of_rows(root: ir.Node) -> Match:
    """A Reshape that takes the pixels of transposed rows apart."""
    image = root.outputs[0]
    image_dims(image)
    (turned,) = inputs(root, 1)
    transpose = producer(turned, "Transpose", alone="the transposed rows are used elsewhere")
    need(not image.is_graph_output(), "the image is a result of the graph", image)
    alone = all(convolves(user, image) for user in users(image))
    need(alone, "something else than convolutions reads the image", root)
    rows_of_channels = reordered(through(inputs(transpose, 1)[0], transpose, root), TO_CHANNELS_LAST)
    need(rows_of_channels.keeps_order, NO_ROWS, root)
    rows = chain(rows_of_channels, root)
    return Match((transpose, root), lambda: channels_first(rows.build()))


def _rows_of_image(root: ir.Node) -> Match:
    """A Transpose of an image whose pixels a Reshape has joined."""
    (joined,) = inputs(root, 1)
    reshape = producer(joined, *RESHAPING, alone="the joined pixels are used elsewhere")
    (image,) = inputs(reshape, 1)
    image_dims(image)
    need(is_used_once(image), "the image is used elsewhere", image)
    need(is_in_blocks(image), "the image is not in the blocked layout", image)
    turned, found = reordered(identity(image), TO_CHANNELS_LAST), through(image, reshape, root)
    need(same(found, reshaped(turned, found.dims)), NO_ROWS, root)
    rows = chain(reshaped(whole(image, turned.dims), found.dims), root)
    return Match(
        (reshape, root),
        lambda: rows.build(channels_last(image)),
    )


class UnfoldedImageReordering(CpuRule[Match]):
    """``Transpose(Reshape(Transpose(Reshape(image))))`` → ``Reshape(Transpose(Reshape(Transpose(image))))``.

    Channels go last beside a convolution, where ONNX Runtime's reordering takes them, before pixels are regrouped.

    Transformers within convolutional networks (MobileViT, EdgeNeXt, CoAtNet, windows of images) regroup the pixels of
    an image by several Reshapes and Transposes, and end with a row of channels for each pixel. Where the channels go
    last first, what is regrouped are whole rows, and one Transpose does it; where they come back last, the same.

    The first Transpose then puts the channels last, which ONNX Runtime does as it takes the image out of its blocked
    layout, and the second moves whole rows. The other way round before a convolution. The same bits. Of several images
    only where a single Transpose is left.
    """

    after = ("transpose_optimizer", "reshape_transpose_reordering")
    roots = ("Transpose", *sorted(RESHAPING))
    needs = CONVOLUTIONS
    opsets = (5, NEWEST_OPSET)
    lookback = LONGEST
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """A chain that starts at an image in blocks, or ends before a convolution."""
        (x, *_) = inputs(root, len(root.inputs))
        image = root.outputs[0]
        if is_in_blocks(x):
            return _unfolding(root, x)
        need(bool(users(image)) and not image.is_graph_output(), "no image is before it or behind it", root)
        need(all(convolves(user, image) for user in users(image)), "no image is before it or behind it", root)
        return _folding(root, image)


def _unfolding(root: ir.Node, image: ir.Value) -> Match:
    """The longest chain from an image to rows."""
    need(not _turns(root, TO_CHANNELS_LAST), "the channels go last already", root)
    need(is_used_once(image), "the image is used elsewhere", image)
    parts = _image(image)
    (_, *views), nodes = all_below(View(image, parts), _proven)
    while views and not _has_rows(views[-1], parts[1]):
        nodes.pop()
        views.pop()
    need(bool(views), "the channels do not go last", root)
    made = plan(View(image, _last(parts)), views[-1].groups)
    _check_gain(nodes, made, (made.view.groups, _spread(made)), image)
    y = nodes[-1].outputs[0]
    return Match(tuple(nodes), lambda: {y: _unfolded(made)}, (y,))


def _proven(value: ir.Value) -> Sequence[Dim] | None:
    """The dimensions of a value; what a file declares of a result is no proof."""
    return None if value.is_graph_output() else shape_of(value)


def _unfolded(made: Plan) -> ir.Value:
    """Build the Transpose of the image, and what makes rows of that."""
    source = made.view
    return build(structs.replace(made, view=View(channels_last(source.value), source.parts)))


def _folding(root: ir.Node, image: ir.Value) -> Match:
    """The longest chain from rows to an image."""
    need(not _turns(root, TO_CHANNELS_FIRST), "the channels come from the end already", root)
    parts = _image(image)
    nodes: list[ir.Node] = []
    views: list[View] = []
    for after, before in pairwise(all_above(View(image, parts))):
        node = after.value.producer()
        if node is None or node.graph is not root.graph or (node is not root and not is_used_once(after.value)):
            break
        nodes.insert(0, node)
        views.append(before)
    while views and not _has_rows(views[-1], parts[1]):
        nodes.pop(0)
        views.pop()
    need(bool(views), "the channels do not come from the end", root)
    made = plan(views[-1], _last(parts))
    turned = tuple(_spread(made)[place] for place in made.perm or range(len(_spread(made))))
    _check_gain(nodes, made, (turned, made.joined or turned), image)
    return Match(tuple(nodes), lambda: channels_first(build(made)))


def _check_gain(nodes: list[ir.Node], made: Plan, between: tuple[Sequence[Group], ...], image: ir.Value) -> None:
    """Refuse where as many Transposes are left, and none of them moved single elements, or one is made of both again.

    Between Transposes of several images there is a Reshape that splits axes, and that other passes move out of the way.

    Args:
        nodes: The nodes that are replaced.
        made: What takes their place, beside a Transpose of the image.
        between: The dimensions before and behind the Reshape between the two Transposes, which are merged if that is
            none, or moves out of the way.
        image: The image.
    """
    turning = [node for node in nodes if is_op(node, "Transpose")]
    left = made.cost[0]
    single = any(moves_elements(dims(inputs(node, 1)[0]), ops.Transpose(node).order) for node in turning)
    need(left < len(turning) or single, "as many Transposes are left", nodes[-1])
    need(left + len(turning) > 1, "a Transpose of rows is next to it", nodes[-1])  # reshape_transpose_reordering
    one = same_dim(dims(image)[0], 1)
    need(left == 0 or one, "there may be several images, and one Transpose would be made of both", image)
    before, behind = ([own for group in groups if (own := leaves(group))] for groups in between)
    need(left == 0 or before != behind, "one Transpose would be made of both", image)


def _spread(made: Plan) -> tuple[Group, ...]:
    """The dimensions that a plan transposes."""
    return made.view.groups if made.split is None else made.split


def _image(image: ir.Value) -> tuple[Group, ...]:
    """The axes of an image of fixed size that fits blocks."""
    sizes = image_dims(image)
    need(sizes[1] > 1, "the channels fit no blocks", image)
    return tuple((Axis(dim),) for dim in sizes)


def _last(parts: tuple[Group, ...]) -> tuple[Group, ...]:
    """The axes of an image whose channels are last."""
    return tuple(parts[place] for place in TO_CHANNELS_LAST)


def _has_rows(view: View, channels: Group) -> bool:
    """Whether the axes of a value end with all channels, in order, in one dimension."""
    own = View(view.value, (channels,)).axes
    return bool(view.groups) and view.groups[-1][-len(own) :] == own


def _turns(node: ir.Node, order: tuple[int, ...]) -> bool:
    """Whether a node is a Transpose of four axes to some order."""
    return is_op(node, "Transpose") and len(dims(node.outputs[0])) == len(order) and ops.Transpose(node).order == order
