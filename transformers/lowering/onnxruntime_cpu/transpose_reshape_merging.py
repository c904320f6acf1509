"""Transposes with a Reshape between them move the data twice, where once would do.

Attention to images moves the heads in front, makes an image of each, and moves its rows or columns in front for a
product with what is known of each (SAM, ViTDet).
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.match import inputs, is_op, is_used_once, need, producer, users
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.views.emission import chain
from ortopt.views.reading import through

FORM: Final = Form("", "Transpose", "of two around a Reshape")
MAX_RANK: Final = 6


class TransposeReshapeMerging(RewriteRule[Match]):
    """``Transpose(Reshape(Transpose(x)))`` → ``Reshape(Transpose(Reshape(x)))`` where the last axis stays.

    Elements behind one another stay so: short pieces have fast paths where one axis moves.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("transpose_optimizer", "transpose_merging", "reshape_transpose_fusion")
    roots = ("Transpose",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input
    lookback = 3
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Match:
        """Nothing else reads what is between, so that the first Transpose goes away."""
        (middle,) = inputs(root, 1)
        reshape = producer(middle, *sorted(RESHAPING))
        all_move = all(is_op(user, "Transpose") for user in users(middle)) and not middle.is_graph_output()
        need(all_move, "what is between is used elsewhere", middle)
        (turned,) = inputs(reshape, 1)
        first = producer(turned, "Transpose")
        need(is_used_once(turned), "what is between is used elsewhere", turned)
        (x,) = inputs(first, 1)
        once = chain(through(x, first, reshape, root), root)
        need(once.nodes <= 3, "the sizes would be computed", root)
        need(len(once.moves.moved) <= MAX_RANK, "there would be more axes", root)
        if once.transposes:
            check_faster(root, FORM, columns=once.moves.together)
        return Match((root,), once.build)
