"""In the target of an Expand, a 1 means the same as a computed dimension of the input itself."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, dims, inputs, is_constant, need, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics import is_overridable


class Found(Struct, frozen=True):
    """The Expand, its input, and its new target."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    target: tuple[int, ...]


class ExpandFusion(RewriteRule[Found]):
    """``Expand(x, Concat(Shape(x)…))`` → ``Expand(x, constant)`` of numbers, and of 1 for dimensions of x itself."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Expand",)
    after = ("expand_elimination", "shape_folding")

    def match(self, root: ir.Node) -> Found:
        """A computed target of which each element is a number or a dimension of x."""
        x, target = inputs(root, 2)
        need(not is_constant(target) and not is_overridable(target), "the target is not computed", target)
        shape, known = dims(x), contents(target)
        if known is None:
            raise Refusal("the target is not known", target)
        own = (1,) * (len(known) - len(shape)) + tuple(shape[max(len(shape) - len(known), 0) :])
        numbers: list[int] = []
        for to, dim in zip(known, own, strict=True):
            if isinstance(to, int):
                numbers.append(to)
            else:
                need(same_dim(to, dim), f"the dimension {to} is neither a number nor the input's own", target)
                numbers.append(1)
        return Found((root,), x, tuple(numbers))

    def rewrite(self, found: Found) -> ir.Node:
        """Expand to the constant."""
        return ir.node("Expand", [found.source, constant(np.array(found.target, np.int64))])
