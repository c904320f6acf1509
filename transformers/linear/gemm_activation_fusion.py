"""The Gemm kernel can apply an activation to its result before that goes to memory a second time."""

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.kernels import CPU
from ortopt.graph.match import attribute, inputs, need_float32, plain_attributes, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.domains import MICROSOFT

PARAMETERS = {
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Relu": {},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 1.0},
}
"""The activations that the kernel knows, and their attributes with the defaults of the specification."""


class Found(Struct, frozen=True):
    """The nodes, and the activation's attributes."""

    nodes: tuple[ir.Node, ...]
    gemm: ir.Node
    activation: str
    parameters: dict[str, float]


class GemmActivationFusion(RewriteRule[Found]):
    """``Activation(Gemm(a, b, c))`` → ``com.microsoft.FusedGemm<activation>(a, b, c)``."""

    levels = (TransformerLevel.LEVEL2,)
    numerics = Numerics.REORDERED
    roots = tuple(PARAMETERS)
    opsets = (7, NEWEST_OPSET)  # before, Gemm broadcasts by an attribute
    providers = (CPU,)
    produces = ((MICROSOFT, "FusedGemm"),)

    def match(self, root: ir.Node) -> Found:
        """A Gemm in single precision, whose result no other node needs."""
        gemm = producer(inputs(root, 1)[0], "Gemm")
        a, _ = inputs(gemm, 2)
        need_float32(a, "the kernel is")
        plain_attributes(gemm)
        defaults = PARAMETERS[root.op_type]
        return Found(
            (gemm, root), gemm, root.op_type, {name: attribute(root, name, defaults[name]) for name in defaults}
        )

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Gemm with its activation."""
        node = ir.node("FusedGemm", found.gemm.inputs, domain=MICROSOFT)
        node.attributes.update(found.gemm.attributes)
        node.attributes["activation"] = ir.AttrString("activation", found.activation)
        for name, number in found.parameters.items():
            node.attributes[f"activation_{name}"] = ir.AttrFloat32(f"activation_{name}", number)
        return node
