"""A mean over a window that holds the whole image is a global one, which every runtime has.

ONNX Runtime's AveragePool visits every place of a window that is larger than the image, and finds nothing there:
EfficientNet of Hugging Face's transformers, and what is built upon it, pools the last image of 7x7 by a window of
1280x1280, with ``ceil_mode``. Other runtimes refuse windows as large as that, or large ones at all.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import dims, inputs, need, need_fixed, need_float32, users
from ortopt.options import Numerics
from ortopt.patterns.quantization import is_quantizer
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

IMAGES = 2
"""The first axis of an image's size."""


class AveragePoolConversion(RewriteRule[Match]):
    """``AveragePool(x)`` → ``GlobalAveragePool(x)`` where there is one window, over the whole image or more."""

    roots = ("AveragePool",)
    opsets = (7, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """One window over a whole image of fixed size, without pads: what lies outside is not counted."""
        (x,) = inputs(root, 1)
        need_float32(x)
        image = need_fixed(dims(x)[IMAGES:], "the size of the image is not fixed", x)
        need(bool(image) and min(image) > 0, "the image is empty", x)
        pool = ops.Pool(root)
        need(len(pool.kernel) == len(image), "the window has another rank", root)
        need(pool.auto_pad == "NOTSET" and not pool.is_padded, "it is padded", root)
        need(set(pool.dilations) == {1}, "the window has gaps", root)
        over = tuple(window - size for window, size in zip(pool.kernel, image, strict=True))
        need(min(over) >= 0, "the window is smaller than the image", root)
        # Without, there is no window that is larger, or its sum is divided by places that are not there.
        need(pool.rounds_up or not any(over), "a window must lie within the image", root)
        one = all(step > beyond for step, beyond in zip(pool.strides, over, strict=True))
        need(one, "there is no window", root)
        need(not any(map(is_quantizer, users(root.outputs[0]))), "kernels of integers know AveragePool", root)
        return Match((root,), lambda: ir.node("GlobalAveragePool", [x]))
