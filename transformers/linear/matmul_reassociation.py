"""Two linear layers in a row can be one, which is cheaper unless the dimension between them is small."""

import onnx_ir as ir

from ortopt.graph.match import is_used_once, need, producer
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import Folded, linear
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET


class MatmulReassociation(LinearFolding):
    """``(x · W1) · W2`` → ``x · (W1 · W2)`` where that has no more weights.

    Adapters of low rank stay as they are: with a small dimension in the middle, two products are cheaper.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding",)
    roots = ("MatMul",)
    opsets = (1, NEWEST_OPSET)
    lookback = 1

    def match(self, root: ir.Node) -> Folded:
        """Constant matrices of floats."""
        second = linear(root)
        first = linear(producer(second.x, "MatMul"))
        need(is_used_once(second.x), "the first product is used elsewhere", second.x)
        return Folded((first.node, root), first, first.x, *first.then(second))
