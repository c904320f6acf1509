"""The kernels of x86 processors multiply unsigned by signed integers; activations may be shifted to be unsigned."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import scope
from ortopt.graph.match import Code, is_used, need
from ortopt.options import March, Target, TransformerLevel
from ortopt.patterns.quantized_kernels import QUANTIZERS
from ortopt.rule import RewriteRule
from ortopt.system import processor
from ortopt.transformers.quantization._signed_regions import made_unsigned, region


class Found(Struct, frozen=True):
    """The nodes in topological order: what quantizes, what moves or computes integers, what dequantizes them."""

    nodes: tuple[ir.Node, ...]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """What they give to others: floats, and all that is no signed integer of 8 bits."""
        results = (value for node in self.nodes for value in node.outputs)
        return tuple(value for value in results if value.dtype != ir.DataType.INT8 and is_used(value))


class UnsignedQuantizationConversion(RewriteRule[Found]):
    """``Dequantize(Quantize(x))`` by int8 → by uint8, with zero points that are 128 more.

    Exact: the same steps have other names. With ``--march native`` on x86 processors only, whose kernels for two signed
    operands are several times slower. Integers may be moved between the two, or be computed by quantized kernels
    (QLinearConv, QLinearAdd …), where nobody else sees them; weights keep their signs.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = QUANTIZERS
    looks_downstream = True
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """Integers of 8 bits with a sign, all of which are dequantized again."""
        _check_machine(root)
        return Found(region(root))

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build all of them anew, for unsigned integers."""
        shifted: dict[ir.Value, ir.Value] = {}
        for node in found.nodes:
            new = made_unsigned(node, shifted)
            shifted.update(zip(node.outputs, new.outputs, strict=False))
        return {value: shifted[value] for value in found.replaced}


def _check_machine(root: ir.Node) -> None:
    options = scope.of(scope.graph_of(root)).options
    need(
        options.march is March.NATIVE,
        "that is faster on some processors only, and --march native is not given",
        root,
        code=Code.OPTION,
    )
    need(processor.is_x86(), "this processor has kernels for signed integers", root)
