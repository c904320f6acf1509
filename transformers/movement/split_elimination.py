"""A Split into one part, beside empty ones, only copies."""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.facts import contents
from ortopt.graph.match import Dim, attribute, dims, inputs, need, opset, optional, same_dim
from ortopt.onnx_ir_internals import use_count
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.opset_changes import SIZES_ARE_AN_INPUT_FROM


class Found(Struct, frozen=True):
    """The Split, the output that is the whole input, and the input."""

    nodes: tuple[ir.Node, ...]
    part: ir.Value
    source: ir.Value


class SplitElimination(RewriteRule[Found]):
    """``Split`` into one part → ``x``; a part that is all of x, beside empty ones that nobody needs, too."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Split",)
    opsets = (2, NEWEST_OPSET)  # in the first version an input could hold the sizes, as floats too

    def match(self, root: ir.Node) -> Found:
        """One output that has a user and is all."""
        (x,) = inputs(root, 1)
        needed = [part for part in root.outputs if use_count(part) or part.is_graph_output()]
        need(len(needed) == 1, "several parts are needed", root)
        (part,) = needed
        if len(root.outputs) > 1:
            shape, sizes = dims(x), _sizes(root)
            need(sizes is not None and len(sizes) == len(root.outputs), "the sizes of the parts are not known", root)
            assert sizes is not None
            size = sizes[list(root.outputs).index(part)]
            need(same_dim(size, shape[ops.Split(root).axis]), "it leaves something out", root)
        return Found((root,), part, x)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Let users of the part read all."""
        return {found.part: found.source}


def _sizes(root: ir.Node) -> tuple[Dim, ...] | None:
    if opset(root) < SIZES_ARE_AN_INPUT_FROM["Split"]:
        listed: tuple[int, ...] | None = attribute(root, "split", None)
        return listed
    sizes = optional(root, 1)
    return None if sizes is None else contents(sizes)
