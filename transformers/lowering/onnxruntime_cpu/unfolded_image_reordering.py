"""Channels go last beside a convolution, where ONNX Runtime's reordering takes them, before pixels are regrouped.

Transformers within convolutional networks (MobileViT, EdgeNeXt, CoAtNet, windows of images) regroup the pixels of an
image by several Reshapes and Transposes, and end with a row of channels for each pixel. Where the channels go last
first, what is regrouped are whole rows, and one Transpose does it; where they come back last, the same.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct, structs

from ortopt import ops
from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.analysis.kernels import CPU
from ortopt.graph.match import (
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    same_dim,
    users,
)
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.permutations import moves_elements
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transformers.lowering.onnxruntime_cpu._blocked_images import (
    TO_CHANNELS_FIRST,
    TO_CHANNELS_LAST,
    convolves,
    image_dims,
)
from ortopt.views.axes import Axis, Group, View, above, below
from ortopt.views.layouts import Plan, build, plan

LONGEST = 8
"""How many nodes regroup pixels, at most."""


class Found(Struct, frozen=True):
    """The nodes between an image and rows.

    Attributes:
        nodes: Them, in order.
        made: How the one becomes the other where the image's channels are last.
        unfolds: Whether the image comes first.
    """

    nodes: tuple[ir.Node, ...]
    made: Plan
    unfolds: bool

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result of the last node."""
        return (self.nodes[-1].outputs[0],)


class UnfoldedImageReordering(RewriteRule[Found]):
    """``Transpose(Reshape(Transpose(Reshape(image))))`` → ``Reshape(Transpose(Reshape(Transpose(image))))``.

    The first Transpose then puts the channels last, which ONNX Runtime does as it takes the image out of its blocked
    layout, and the second moves whole rows. The other way round before a convolution. The same bits. Of
    several images only where a single Transpose is left.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("transpose_optimizer", "reshape_transpose_reordering")
    roots = ("Transpose", *sorted(RESHAPING))
    opsets = (5, NEWEST_OPSET)
    providers = (CPU,)
    targets = (Target.ORT,)
    lookback = LONGEST
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
        """A chain that starts at an image in blocks, or ends before a convolution."""
        (x, *_) = inputs(root, len(root.inputs))
        image = root.outputs[0]
        if is_in_blocks(x):
            return _unfolding(root, x)
        need(bool(users(image)) and not image.is_graph_output(), "no image is before it or behind it", root)
        need(all(convolves(user, image) for user in users(image)), "no image is before it or behind it", root)
        return _folding(root, image)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build both Transposes, and what is between them."""
        (result,) = found.replaced
        source = found.made.view
        if not found.unfolds:
            image = ir.node("Transpose", [build(found.made)], {"perm": TO_CHANNELS_FIRST})
            return {result: image.outputs[0]}
        turned = ir.node("Transpose", [source.value], {"perm": TO_CHANNELS_LAST}).outputs[0]
        return {result: build(structs.replace(found.made, view=View(turned, source.parts)))}


def _unfolding(root: ir.Node, image: ir.Value) -> Found:
    """The longest chain from an image to rows."""
    need(not _turns(root, TO_CHANNELS_LAST), "the channels go last already", root)
    need(is_used_once(image), "the image is used elsewhere", image)
    parts = _image(image)
    view = View(image, parts)
    nodes: list[ir.Node] = []
    views: list[View] = []
    for _ in range(LONGEST):
        (user,) = users(view.value) if is_used_once(view.value) else (None,)
        if user is None or not is_op(user, "Transpose", *RESHAPING) or user.graph is not root.graph:
            break
        # What a file declares of a result is no proof.
        following = None if user.outputs[0].is_graph_output() else below(view, user)
        if following is None:
            break
        nodes.append(user)
        views.append(following)
        view = following
    while views and not _has_rows(views[-1], parts[1]):
        nodes.pop()
        views.pop()
    need(bool(views), "the channels do not go last", root)
    made = plan(View(image, _last(parts)), views[-1].groups)
    _check_gain(nodes, made, image)
    return Found(tuple(nodes), made, unfolds=True)


def _folding(root: ir.Node, image: ir.Value) -> Found:
    """The longest chain from rows to an image."""
    need(not _turns(root, TO_CHANNELS_FIRST), "the channels come from the end already", root)
    parts = _image(image)
    view = View(image, parts)
    nodes: list[ir.Node] = []
    views: list[View] = []
    for _ in range(LONGEST):
        node = view.value.producer()
        if node is None or not is_op(node, "Transpose", *RESHAPING) or node.graph is not root.graph:
            break
        if node is not root and not is_used_once(view.value):
            break
        before = above(view)
        if before is None:
            break
        nodes.insert(0, node)
        views.append(before)
        view = before
    while views and not _has_rows(views[-1], parts[1]):
        nodes.pop(0)
        views.pop()
    need(bool(views), "the channels do not come from the end", root)
    made = plan(views[-1], _last(parts))
    _check_gain(nodes, made, image)
    return Found(tuple(nodes), made, unfolds=False)


def _check_gain(nodes: list[ir.Node], made: Plan, image: ir.Value) -> None:
    """Refuse where as many Transposes are left, and none of them moved single elements, or one is made of both again.

    Between Transposes of several images there is a Reshape that splits axes, and that other passes move out of the way.
    """
    turning = [node for node in nodes if is_op(node, "Transpose")]
    left = made.cost[0]
    single = any(moves_elements(dims(inputs(node, 1)[0]), ops.Transpose(node).order) for node in turning)
    need(left < len(turning) or single, "as many Transposes are left", nodes[-1])
    need(left + len(turning) > 1, "a Transpose of rows is next to it", nodes[-1])  # reshape_transpose_reordering
    one = same_dim(dims(image)[0], 1)
    need(left == 0 or one, "there may be several images, and one Transpose would be made of both", image)


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
    leaves = View(view.value, (channels,)).axes
    return bool(view.groups) and view.groups[-1][-len(leaves) :] == leaves


def _turns(node: ir.Node, order: tuple[int, ...]) -> bool:
    """Whether a node is a Transpose of four axes to some order."""
    return is_op(node, "Transpose") and len(dims(node.outputs[0])) == len(order) and ops.Transpose(node).order == order
