"""QuantizeLinear saturates: what cuts off no more than that before it is not needed."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import inputs, need, need_float32, plain_attributes
from ortopt.options import TransformerLevel
from ortopt.patterns.clamp import bounds_of
from ortopt.patterns.quantization import RANGES, integer_of, is_near_an_integer, scaling
from ortopt.patterns.quantized_kernels import QUANTIZERS, unit_before
from ortopt.rule import Forwarded, Replacement, RewriteRule


class ClipQuantizeElimination(RewriteRule[Forwarded]):
    """``Quantize(Relu(x))`` or ``Quantize(Clip(x, low, high))`` → ``Quantize(x)`` where the integers end sooner.

    Exact: both bounds are the least and the greatest integer, or beyond them.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("relu_clip_fusion",)
    roots = QUANTIZERS

    def match(self, root: ir.Node) -> Forwarded:
        """Bounds at or beyond those of the integers."""
        clip = unit_before(root, "Relu", "Clip")
        plain_attributes(root)
        x = inputs(clip, 1)[0]
        need_float32(x)
        mapping = scaling(root)
        need(bool(np.all(mapping.scale > 0)), "a scale is not positive", root)
        low, high = (0.0, math.inf) if clip.op_type == "Relu" else bounds_of(clip)
        least, greatest = RANGES[mapping.integers]
        lowest, highest = integer_of(low, mapping), integer_of(high, mapping)
        beyond = bool(np.all(lowest <= least) and np.all(highest >= greatest))
        need(beyond, "it cuts off numbers that have integers of their own", clip)
        for bound, nearest, end in ((low, lowest, least), (high, highest, greatest)):
            at_the_end = bool(np.any(nearest == end))
            need(not at_the_end or is_near_an_integer(bound, mapping), "a bound is between two integers", clip)
        return Forwarded((clip, root), x)

    def rewrite(self, found: Forwarded) -> Replacement:
        """Build the QuantizeLinear alone."""
        root = found.nodes[-1]
        return ops.copied(root, [found.value, *root.inputs[1:]])
