"""Nine kernels that each walk over the whole tensor become one that does so twice."""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import DOUBLE, FLOAT, dtype, need, producer, values
from ortopt.normalization import ROOTS, Mean, affine, mean_over_last_axes, quotient, static_dims_from, uncast
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule


class Found(NamedTuple):
    """The nodes, and what the LayerNormalization takes and gives."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    scale: ir.Value | None
    bias: ir.Value | None
    axis: int
    epsilon: float
    dims: tuple[int, ...]
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which stands below the root."""
        return (self.y,)


class LayerNormFusion(RewriteRule[Found]):
    """``scale · (x - mean(x)) / Sqrt(mean((x - mean(x))²) + ε) + bias`` → ``LayerNormalization(x, scale, bias)``.

    Level 1 emits the standard op of opset 17; level 2, for ONNX Runtime, also its own older one of the same name.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    after = ("cast_elimination", "constant_folding")
    roots = ROOTS
    reach = 7
    wide = True
    produces = (("", "LayerNormalization"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The deviation from the mean above the root; the quotient, scale and bias below it."""
        found = quotient(root)
        nodes: list[ir.Node] = []
        mean = _deviation(found.base, nodes)
        need(mean.axis == found.axis, "the means are over different axes", mean.node)
        if found.numerator is not found.base:
            other = _deviation(found.numerator, nodes)
            need(other[1:] == mean[1:], "another difference is divided", found.numerator)
        below = affine(found, mean.of, with_bias=True)
        shape = static_dims_from(below.x, mean.axis)
        return Found(
            tuple(dict.fromkeys((*nodes, *found.nodes, *below.nodes))),
            below.x,
            below.scale,
            below.bias,
            -len(shape),
            found.epsilon,
            shape,
            below.y,
        )

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the LayerNormalization; it must have a scale."""
        kind = dtype(found.x)
        scale = constant(np.ones(found.dims), kind) if found.scale is None else found.scale
        attributes: dict[str, int | float] = {"axis": found.axis, "epsilon": found.epsilon}
        if kind == DOUBLE:
            attributes["stash_type"] = DOUBLE.value
        elif scope.of(scope.graph_of(found.nodes[0])).in_function:
            attributes["stash_type"] = FLOAT.value  # ONNX Runtime 1.31 crashes on a function without it
        inputs = [found.x, scale] if found.bias is None else [found.x, scale, found.bias]
        return {found.y: ir.node("LayerNormalization", inputs, attributes).outputs[0]}


def _deviation(value: ir.Value, nodes: list[ir.Node]) -> Mean:
    """The mean of x behind ``x - mean(x)``; takes up the nodes."""
    node = producer(uncast(value, nodes), "Sub")
    x, average = values(node, 2)
    mean = mean_over_last_axes(average)
    need(mean.of is x, "the mean of something else is subtracted", node)
    nodes += [node, mean.node]
    return mean
