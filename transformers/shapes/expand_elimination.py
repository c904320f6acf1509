"""An Expand to a shape that the value already has only copies."""

import onnx_ir as ir

from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, dims, inputs, need, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import Elimination, Forwarded


class ExpandElimination(Elimination):
    """``Expand(x, shape of x)`` → ``x``, by symbols too."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Expand",)

    def match(self, root: ir.Node) -> Forwarded:
        """A target of no higher rank, in which each dimension is 1 or that of x."""
        x, target = inputs(root, 2)
        shape, known = dims(x), contents(target)
        if known is None:
            raise Refusal("the target shape is not known", target)
        need(len(known) <= len(shape), "it enlarges the rank", target)
        aligned = shape[len(shape) - len(known) :]
        same = all(same_dim(to, 1) or same_dim(to, dim) for to, dim in zip(known, aligned, strict=True))
        need(same, "it may enlarge a dimension", target)
        return Forwarded((root,), x)
