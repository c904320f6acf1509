"""An exponential linear unit, spelled out, is one op; the CPU's kernel for it is no faster on large tensors."""

import onnx_ir as ir

from ortopt.graph.match import FLOAT, dtype, need
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.activation._elu import Elu, elu


class EluFusion(RewriteRule[Elu]):
    """``Where(x > 0, x, a · (Exp(x) - 1))`` → ``Elu<alpha = a>(x)``; with ``Exp(x / a)`` it is a Celu."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "constant_reassociation", "not_where_fusion", "relu_fusion")
    roots = ("Relu", "Where")
    looks_downstream = True
    opsets = (12, NEWEST_OPSET)  # from there on there is a Celu
    lookback = 5
    fuses = (("", "Celu"), ("", "Elu"))
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Elu:
        """Parameters that the op can hold."""
        spelled = elu(root)
        need_single(spelled.x)
        need(spelled.rate == 1 or dtype(spelled.x) == FLOAT, "a Celu is of single precision only", spelled.x)
        return spelled

    def rewrite(self, found: Elu) -> dict[ir.Value, ir.Value]:
        """Build the Elu, or the Celu."""
        node = ir.node("Elu" if found.rate == 1 else "Celu", [found.x], {"alpha": found.alpha})
        return {found.y: node.outputs[0]}
