"""A constant factor before a QuantizeLinear can be part of its scale."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    inputs,
    is_constant,
    keeps_rank,
    need,
    only_user,
    plain_attributes,
    producer,
    scalar,
)
from ortopt.options import March, Numerics, Target, TransformerLevel
from ortopt.patterns.quantization import is_faithful, scaling
from ortopt.rule import RewriteRule

FACTORS = (2.0**-20, 2.0**20)
"""Between these, neither the product nor the new scale overflows or loses digits."""


class Found(Struct, frozen=True):
    """The product and the QuantizeLinear, what is multiplied, and the new scale."""

    nodes: tuple[ir.Node, ir.Node]
    x: ir.Value
    scale: np.ndarray


class QuantizeScaleFolding(RewriteRule[Found]):
    """``QuantizeLinear(x · c, s)`` → ``QuantizeLinear(x, s / c)``. So for ``x / c``.

    Where x / (s / c) lies in the middle between two integers, it may be rounded to the neighbour.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("qdq_propagation",)
    roots = ("QuantizeLinear", "com.microsoft::QuantizeLinear")
    numerics = Numerics.QUANTIZED
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """A product by a constant that nothing else reads."""
        plain_attributes(root)
        (numbers,) = inputs(root, 1)
        product = producer(numbers, "Div", "Mul")
        plain_attributes(product)
        only_user(numbers)
        x, other = inputs(product, 2)
        if product.op_type == "Mul" and is_constant(x):
            x, other = other, x
        factor = scalar(other)
        need(keeps_rank(other, x), "the factor would raise the rank", other)
        need(FACTORS[0] <= factor <= FACTORS[1], "the factor is negative, zero, very small or very large", other)
        mapping = scaling(root)
        need(mapping.numbers == FLOAT, "the numbers are not float32", root)
        need(mapping.scale.ndim == 0, "there are several scales", root)
        need(is_faithful(mapping), "the scale is too large or too small to be exact", root)
        signed = (
            mapping.integers == ir.DataType.INT8 and scope.of(scope.graph_of(root)).options.march is not March.NATIVE
        )
        need(not signed, "ONNX Runtime makes signed integers unsigned only within pairs of one scale", root)
        scale = np.float64(mapping.scale)
        folded = scale * factor if product.op_type == "Div" else scale / factor
        return Found((product, root), x, np.array(folded, np.float32))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the QuantizeLinear of what was multiplied."""
        root = found.nodes[-1]
        operands = [found.x, constant(found.scale), *root.inputs[2:]]
        return ops.copied(root, operands)
