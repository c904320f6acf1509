"""Parts that are dequantized, joined and quantized again can be joined as integers."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import inputs, plain_attributes
from ortopt.options import Numerics
from ortopt.patterns.quantized_kernels import KernelCall, UnitFusion, check_same_type, operand, result, unit_before
from ortopt.semantics.domains import MICROSOFT


class QlinearConcatFusion(UnitFusion):
    """``Quantize(Concat(Dequantize(a), …))`` → ``com.microsoft.QLinearConcat(a, …)``.

    Exact: the kernel maps each of the 256 integers as the unit does.
    """

    numerics = Numerics.EXACT
    produces = ((MICROSOFT, "QLinearConcat"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A Concat of dequantized operands of the result's type."""
        concat = unit_before(root, "Concat")
        y = result(root)
        plain_attributes(concat)
        parts = [operand(value) for value in inputs(concat, len(concat.inputs))]
        check_same_type(*parts, y)
        triples = [item for part in parts for item in part.triple]
        attributes = tuple(ops.changed((), axis=ops.Concat(concat).axis))
        return KernelCall((concat, root), "QLinearConcat", (y.scale, y.zero_point, *triples), attributes)
