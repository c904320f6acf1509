"""ONNX Runtime reorders channels that are last into its blocked layout, and back, without a Transpose of its own.

It sees that where the Transpose of an image is next to a convolution. Transformers for images keep a row for each pixel
and export the Transpose of these rows, with a Reshape to the image between it and the convolution.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.analysis.kernels import CPU
from ortopt.graph.match import inputs, is_op, is_used_once, need, producer, users
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transformers.lowering.onnxruntime_cpu._blocked_images import (
    TO_CHANNELS_FIRST,
    TO_CHANNELS_LAST,
    convolves,
    image_dims,
)
from ortopt.views.emission import chain
from ortopt.views.index_map import identity, reordered, reshaped, same, whole
from ortopt.views.reading import through

NO_ROWS = "the rows are not all channels of each pixel"


class ReshapeTransposeReordering(RewriteRule[Match]):
    """``Reshape(Transpose(x))`` → ``Transpose(Reshape(x))`` for rows that become an image of a convolution.

    And ``Transpose(Reshape(x))`` → ``Reshape(Transpose(x))`` for such an image that becomes rows. The same bits.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("transpose_optimizer",)
    roots = ("Transpose", *sorted(RESHAPING))
    opsets = (5, NEWEST_OPSET)
    providers = (CPU,)
    targets = (Target.ORT,)
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Both nodes, next to a convolution in blocks."""
        return _rows_of_image(root) if is_op(root, "Transpose") else _image_of_rows(root)


def _image_of_rows(root: ir.Node) -> Match:
    """A Reshape that takes the pixels of transposed rows apart."""
    image = root.outputs[0]
    image_dims(image)
    (turned,) = inputs(root, 1)
    transpose = producer(turned, "Transpose")
    need(is_used_once(turned), "the transposed rows are used elsewhere", turned)
    need(not image.is_graph_output(), "the image is a result of the graph", image)
    alone = all(convolves(user, image) for user in users(image))
    need(alone, "something else than convolutions reads the image", root)
    channels_last = reordered(through(inputs(transpose, 1)[0], transpose, root), TO_CHANNELS_LAST)
    need(channels_last.keeps_order, NO_ROWS, root)
    rows = chain(channels_last, root)
    return Match((transpose, root), lambda: ir.node("Transpose", [rows.build()], {"perm": TO_CHANNELS_FIRST}))


def _rows_of_image(root: ir.Node) -> Match:
    """A Transpose of an image whose pixels a Reshape has joined."""
    (joined,) = inputs(root, 1)
    reshape = producer(joined, *RESHAPING)
    need(is_used_once(joined), "the joined pixels are used elsewhere", joined)
    (image,) = inputs(reshape, 1)
    image_dims(image)
    need(is_used_once(image), "the image is used elsewhere", image)
    need(is_in_blocks(image), "the image is not in the blocked layout", image)
    turned, found = reordered(identity(image), TO_CHANNELS_LAST), through(image, reshape, root)
    need(same(found, reshaped(turned, found.dims)), NO_ROWS, root)
    rows = chain(reshaped(whole(image, turned.dims), found.dims), root)
    return Match(
        (reshape, root),
        lambda: rows.build(ir.node("Transpose", [image], {"perm": TO_CHANNELS_LAST}).outputs[0]),
    )
