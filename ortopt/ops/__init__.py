"""What nodes say, read and written once: in the form of any opset, with defaults, and axes counted from the front.

``ops.Conv(node).strides``, ``ops.Transpose(node).order``, ``ops.Reduce(node).axes``: each reader is of an op, or of
several that have the same attributes. No other place reads these attributes of a node.
"""

from __future__ import annotations

from ortopt.ops.axes import (
    Axes,
    Concat,
    Flatten,
    Gather,
    OneAxis,
    Reduce,
    Softmax,
    Split,
    SplitToSequence,
    Squeeze,
    Unsqueeze,
)
from ortopt.ops.moves import Cut, Pad, Resize, Slice, Transpose, slice_node
from ortopt.ops.products import Activation, Conv, Gemm, MatMul, Pool, Window
from ortopt.ops.reader import Reader, Setting, changed, copied, followed, node_along, split_node, squeezed, unsqueezed

__all__ = [
    "Activation",
    "Axes",
    "Concat",
    "Conv",
    "Cut",
    "Flatten",
    "Gather",
    "Gemm",
    "MatMul",
    "OneAxis",
    "Pad",
    "Pool",
    "Reader",
    "Reduce",
    "Resize",
    "Setting",
    "Slice",
    "Softmax",
    "Split",
    "SplitToSequence",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
    "Window",
    "changed",
    "copied",
    "followed",
    "node_along",
    "slice_node",
    "split_node",
    "squeezed",
    "unsqueezed",
]
