"""Quantizing twice with one scale is quantizing once, if the first saturates no earlier."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import inputs, need
from ortopt.options import TransformerLevel
from ortopt.patterns.quantization import dequantizer, is_dequantizer, is_faithful, quantizer, same_scale, scaling
from ortopt.rule import RewriteRule


class Found(Struct, frozen=True):
    """The three nodes, and the numbers that are quantized."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value


class DoubleQdqPairsRemover(RewriteRule[Found]):
    """``Quantize(Dequantize(Quantize(x)))`` to other integers of the same scale → ``Quantize(x)``.

    The result is exact: both round x / scale in the same way, and the second saturates wherever the first does. ONNX
    Runtime also drops pairs with different scales, and computes a new scale for the remaining one, which changes the
    rounding of the model.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("qdq_final_cleanup",)
    roots = ("QuantizeLinear", "com.microsoft::QuantizeLinear")
    lookback = 3

    def match(self, root: ir.Node) -> Found:
        """Equal scales, and a first range that holds the second."""
        dequantize = dequantizer(inputs(root, 1)[0])
        first = quantizer(inputs(dequantize, 1)[0])
        (x,) = inputs(first, 1)
        inner, between, outer = scaling(first), scaling(dequantize), scaling(root)
        need(same_scale(inner, between) and same_scale(between, outer), "the scales differ: it rounds twice", root)
        same = inner.integers == between.integers and bool(np.array_equal(inner.zero_point, between.zero_point))
        need(same, "the first pair does not give back what it took", first)
        need(is_faithful(inner) and is_faithful(outer), "the scale is too large or too small to be exact", root)
        holds = bool(np.all(inner.lowest <= outer.lowest) and np.all(inner.highest >= outer.highest))
        need(holds, "the first saturates earlier", first)
        producer = x.producer()
        is_unit = producer is not None and any(value and is_dequantizer(value.producer()) for value in producer.inputs)
        need(not is_unit, "a quantized kernel gives the first type", first)
        return Found((first, dequantize, root), x)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the one QuantizeLinear."""
        root = found.nodes[-1]
        return ops.copied(root, [found.source, *root.inputs[1:]])
