"""A Reshape to the shape that a value already has changes nothing."""

import onnx_ir as ir

from ortopt.graph.facts import contents
from ortopt.graph.match import Dim, Refusal, attribute, dims, inputs, need, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule


class ReshapeElimination(RewriteRule[Forwarded]):
    """``Reshape(x, shape of x)`` → ``x``, with 0, one -1 and symbols."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("reshape_merging",)  # of two Reshapes to one shape, the target of the last stays
    roots = ("Reshape",)
    opsets = (5, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Forwarded:
        """A target that gives back each dimension of x.

        What the file declares about the result is no proof: only the target counts.
        """
        x, target = inputs(root, 2)
        shape, known = dims(x), contents(target)
        if known is None:
            raise Refusal("the target shape is not known", target)
        need(len(known) == len(shape), "the rank changes", target)
        copies_at_zero = attribute(root, "allowzero", 0) != 1
        free = 0
        for to, dim in zip(known, shape, strict=True):
            if same_dim(to, dim) or (copies_at_zero and same_dim(to, 0)):
                continue
            need(same_dim(to, -1), "a dimension may change", target)
            free += 1
        need(free <= 1, "two dimensions are free", target)
        need(not free or _has_elements(known, shape), "with 0 elements a -1 may be any size", target)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read its input."""
        return found.value


def _has_elements(known: tuple[Dim, ...], shape: tuple[Dim, ...]) -> bool:
    """Whether the dimensions besides the free one are not surely 0: with such a one the free one is undefined."""
    return not any(same_dim(dim, 0) for to, dim in zip(known, shape, strict=True) if not same_dim(to, -1))
