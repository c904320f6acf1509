"""A loop whose iterations compute an LSTM, a GRU or a simple recurrent cell is that op.

Exporters that do not know a layer write it as a loop: Keras' GRU as TensorFlow traces it, a cell of one's own, a scan.
Each iteration then runs a dozen small kernels, and the loop's own costs come on top.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis.kernels import CPU
from ortopt.options import Numerics, TransformerLevel
from ortopt.transformer import Context, GraphTransformer
from ortopt.transformers.control_flow._loops import LOOPS
from ortopt.transformers.control_flow._recurrences import SIMPLE, fused, recurrence_of


class LoopRecurrenceFusion(GraphTransformer):
    """``Loop`` or ``Scan`` over the cell of an LSTM, a GRU or a simple RNN → ``LSTM``, ``GRU``, ``RNN``.

    What else the iterations compute from the cell's results stays in the loop, and reads them row by row. An If leaves
    to a Loop what the kernels do not compute: no steps, no sequences, and NaN, for which they give numbers.
    """

    levels = (TransformerLevel.LEVEL2,)
    needs = LOOPS
    numerics = Numerics.REORDERED
    providers = (CPU,)
    fuses = (("", "LSTM"), ("", "GRU"), ("", "RNN"))
    weighs = (SIMPLE,)
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Fuse the cells of the loops of a graph, one after the other: one may read what another gives."""
        changed = False
        pending = [node for node in graph if semantics.key(node) in (("", "Loop"), ("", "Scan"))]
        while pending:
            for node, found in context.answered([pending.pop()], recurrence_of):
                if context.attempt((node,), partial(fused, found, context), f"it is a {found.cell.op}"):
                    changed = True
                    pending += [node] if node.graph is not None else []
        return changed
