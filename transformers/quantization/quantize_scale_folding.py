"""A constant factor before a QuantizeLinear can be part of its scale."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    inputs,
    need,
    only_user,
    plain_attributes,
    producer,
)
from ortopt.options import March, Numerics, Target, TransformerLevel
from ortopt.patterns.quantization import scaling
from ortopt.rule import RewriteRule
from ortopt.transformers.quantization._scale_factor import factor_of, with_factor


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
        only_user(numbers)
        x, factor = factor_of(product)
        scale = with_factor(root, factor, multiplied=product.op_type == "Div")
        native = scope.of(scope.graph_of(root)).options.march is March.NATIVE
        signed = scaling(root).integers == ir.DataType.INT8 and not native
        need(not signed, "ONNX Runtime makes signed integers unsigned only within pairs of one scale", root)
        return Found((product, root), x, scale)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the QuantizeLinear of what was multiplied."""
        root = found.nodes[-1]
        operands = [found.x, constant(found.scale), *root.inputs[2:]]
        return ops.copied(root, operands)
