"""Expands: those that only copy, those whose target is computed, and Tiles that only repeat single elements."""

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import dims, inputs, is_constant, need, need_known, same_dim
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded, Match, RewriteRule
from ortopt.semantics import is_overridable

EXPAND_SINCE = 8


class ExpandElimination(Elimination):
    """``Expand(x, shape of x)`` → ``x``, by symbols too."""

    roots = ("Expand",)

    def match(self, root: ir.Node) -> Forwarded:
        """A target of no higher rank, in which each dimension is 1 or that of x."""
        x, target = inputs(root, 2)
        shape, known = dims(x), need_known(contents(target), "the target shape is not known", target)
        need(len(known) <= len(shape), "it enlarges the rank", target)
        aligned = shape[len(shape) - len(known) :]
        same = all(same_dim(to, 1) or same_dim(to, dim) for to, dim in zip(known, aligned, strict=True))
        need(same, "it may enlarge a dimension", target)
        return Forwarded((root,), x)


class ExpandFusion(RewriteRule[Match]):
    """``Expand(x, Concat(Shape(x)…))`` → ``Expand(x, constant)`` of numbers, and of 1 for dimensions of x itself."""

    roots = ("Expand",)
    after = ("expand_elimination", "shape_folding")

    def match(self, root: ir.Node) -> Match:
        """A computed target of which each element is a number or a dimension of x."""
        x, target = inputs(root, 2)
        need(not is_constant(target) and not is_overridable(target), "the target is not computed", target)
        shape, known = dims(x), need_known(contents(target), "the target is not known", target)
        own = (1,) * (len(known) - len(shape)) + tuple(shape[max(len(shape) - len(known), 0) :])
        numbers: list[int] = []
        for to, dim in zip(known, own, strict=True):
            if isinstance(to, int):
                numbers.append(to)
            else:
                need(same_dim(to, dim), f"the dimension {to} is neither a number nor the input's own", target)
                numbers.append(1)
        return Match((root,), lambda: ir.node("Expand", [x, constant(np.array(numbers, np.int64))]))


class TileCanonicalization(RewriteRule[Match]):
    """``Tile(x, repeats)`` → ``Expand(x, repeats)``, where each axis has one element or is taken once.

    ONNX Runtime is faster so along the last axis, and never slower. What follows may not need the repeated elements at
    all: operands are broadcast.
    """

    roots = ("Tile",)
    opsets = (EXPAND_SINCE, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """Axes that have one element, or are repeated once."""
        x, repeats = inputs(root, 2)
        shape, counts = dims(x), need_known(contents(repeats), "the repeats are not known", repeats)
        need(len(counts) == len(shape), "there are not as many repeats as axes", repeats)
        need(not all(same_dim(count, 1) for count in counts), "it repeats nothing", repeats)
        single = all(same_dim(count, 1) or same_dim(dim, 1) for count, dim in zip(counts, shape, strict=True))
        need(single, "an axis that it repeats may have several elements", x)
        # As many elements as there are repeats, or 1, which keeps an axis.
        return Match((root,), lambda: ir.node("Expand", [x, repeats]))
