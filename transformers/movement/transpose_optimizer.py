"""A Transpose moves every byte and computes nothing; most stand in pairs around ops that work in any layout."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.transformer import Context, GraphTransformer
from ortopt.transpose.movement import SINGLE
from ortopt.transpose.optimizer import TransposeReducer


class TransposeOptimizer(GraphTransformer):
    """``Transpose⁻¹(op(Transpose(x)))`` → ``op(x)``: transposes move through ops to where they cancel.

    A rewrite is made only if fewer transposes remain, and if they do not move more bytes than before, or single
    elements for so long that nothing is gained. Level 3 runs the pass again, on what the fusions of level 2 have left.

    OpenVINO moves Transposes itself, into convolutions and attentions whose layouts it chooses: some networks are
    slower there where they have been moved before.
    """

    targets = tuple(target for target in Target if target is not Target.OPENVINO)

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    apply_once = True
    level_independent = True
    after = (
        "common_subexpression_elimination",
        "constant_folding",
        "identity_elimination",
        "matmul_add_fusion",
        "noop_elimination",
        "reshape_fusion",
        "scatter_transpose_elimination",
        "shape_folding",
        "transpose_merging",
        "transpose_elimination",
    )
    weighs = (SINGLE,)
    numerics = Numerics.REORDERED
    keeps_elementwise = True
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Rearrange the regions around a graph's transposes."""
        return TransposeReducer(graph, context).run()
