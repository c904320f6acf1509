"""The bias of a dense layer costs a pass over memory of its own, unless the activation adds it on the way."""

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import Refusal, attribute, dims, inputs, is_op, is_vector_of, need, optional, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT


class Found(Struct, frozen=True):
    """The nodes, the fused op, and its operands."""

    nodes: tuple[ir.Node, ...]
    op: str
    x: ir.Value
    bias: ir.Value


class BiasGeluFusion(RewriteRule[Found]):
    """``Gelu(x + bias)`` → ``com.microsoft.BiasGelu(x, bias)``, and ``FastGelu(x + bias)`` → ``FastGelu(x, bias)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("gelu_fusion", "fast_gelu_fusion")
    roots = ("Gelu", f"{MICROSOFT}::Gelu", f"{MICROSOFT}::FastGelu")
    produces = ((MICROSOFT, "BiasGelu"), (MICROSOFT, "FastGelu"))
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The sum of a tensor and a row of its last dimension."""
        exact = not is_op(root, "FastGelu", domain=MICROSOFT)
        if is_op(root, "Gelu"):
            exact = attribute(root, "approximate", "none") == "none"
        need(optional(root, 1) is None, "it has a bias", root)
        addition = producer(inputs(root, 1)[0], "Add")
        for x, bias in (inputs(addition, 2), inputs(addition, 2)[::-1]):
            shape = dims(x)
            if shape and is_vector_of(bias, shape[-1]):
                return Found((addition, root), "BiasGelu" if exact else "FastGelu", x, bias)
        raise Refusal("no operand is a row of the last dimension", addition)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the activation with its bias."""
        return ir.node(found.op, [found.x, found.bias], domain=MICROSOFT)
