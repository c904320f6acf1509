"""Root-mean-square normalization, as Llama and T5 spell it, becomes one kernel that reads its input twice."""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import DOUBLE, FLOAT, dtype, need, opset
from ortopt.normalization import ROOTS, affine, cast_source, quotient, static_dims_from
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule


class Found(NamedTuple):
    """The nodes, and what the normalization takes and gives."""

    nodes: tuple[ir.Node, ...]
    op: str
    x: ir.Value
    scale: ir.Value | None
    epsilon: float
    dims: tuple[int, ...]
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which stands below the root."""
        return (self.y,)


class RmsNormFusion(RewriteRule[Found]):
    """``scale · x / Sqrt(mean(x²) + ε)`` → ``RMSNormalization(x, scale)``.

    Level 1 emits the standard op of opset 23; level 2, for ONNX Runtime, its own SimplifiedLayerNormalization before.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    after = ("cast_elimination", "constant_folding", "layer_norm_fusion")
    roots = ROOTS
    reach = 6
    wide = True
    produces = (("", "SimplifiedLayerNormalization"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The mean of the squares above the root; the quotient and the scale below it."""
        found = quotient(root)
        x = found.base
        if found.numerator is not x:
            need(cast_source(x) is found.numerator, "something else is divided", found.numerator)
            x = found.numerator
        below = affine(found, x, with_bias=False)
        op = "RMSNormalization" if opset(root) >= 23 else "SimplifiedLayerNormalization"
        nodes = tuple(dict.fromkeys((*found.nodes, *below.nodes)))
        return Found(nodes, op, below.x, below.scale, found.epsilon, static_dims_from(below.x, found.axis), below.y)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the normalization; it must have a scale."""
        kind = dtype(found.x)
        scale = constant(np.ones(found.dims), kind) if found.scale is None else found.scale
        attributes: dict[str, int | float] = {"axis": -len(found.dims), "epsilon": found.epsilon}
        if kind == DOUBLE:
            attributes["stash_type"] = DOUBLE.value
        elif scope.of(scope.graph_of(found.nodes[0])).in_function:
            attributes["stash_type"] = FLOAT.value  # ONNX Runtime 1.31 crashes on a function without it
        return {found.y: ir.node(found.op, [found.x, scale], attributes).outputs[0]}
