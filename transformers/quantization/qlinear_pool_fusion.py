"""Means between DequantizeLinear and QuantizeLinear have kernels of 8-bit integers."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import dims, inputs, is_never_zero, need, plain_attributes
from ortopt.patterns.quantized_kernels import KernelCall, UnitFusion, check_same_type, operand, result, unit_before
from ortopt.semantics.domains import MICROSOFT


class QlinearPoolFusion(UnitFusion):
    """``Quantize(AveragePool(Dequantize(x)))`` → ``com.microsoft.QLinearAveragePool(x)``.

    So for GlobalAveragePool.
    """

    produces = ((MICROSOFT, "QLinearAveragePool"), (MICROSOFT, "QLinearGlobalAveragePool"))

    def match(self, root: ir.Node) -> KernelCall:
        """A pool of means."""
        pool = unit_before(root, "AveragePool", "GlobalAveragePool")
        y = result(root)
        attributes = plain_attributes(pool)
        x = operand(inputs(pool, 1)[0])
        check_same_type(x, y)
        whole = pool.op_type == "GlobalAveragePool"
        sizes = dims(x.integers)
        need(all(is_never_zero(size, pool) for size in sizes[2:]), "a mean of nothing", pool)
        if not whole:
            need(set(ops.Pool(pool).dilations) == {1}, "the kernel knows no dilations", pool)
            need(not ops.Pool(pool).rounds_up, "windows beyond the border are counted otherwise", pool)
        kept = tuple(ops.changed(attributes.values(), dilations=None))
        operands = (*x.triple, y.scale, y.zero_point)
        return KernelCall((pool, root), f"QLinear{pool.op_type}", operands, kept)
