"""Slices with steps and a Concat of what they take copy every pixel three times; one Transpose copies it once.

Swin, its relatives and other pyramids of transformers join the channels of neighbouring pixels so, channels last.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.match import Refusal, inputs, is_used_once, need, need_float32, rank
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.views.emission import chain
from ortopt.views.reading import maps

MAX_MOVES = 4
"""How many moves take a part, at most."""


class StridedConcatConversion(RewriteRule[Match]):
    """``Concat`` of ``x[:, i::b, j::b]`` for all i, j → ``Reshape(Transpose(Reshape(x)))``, for channels that are last.

    And of all other parts that follow one another at equal distances, however they are taken.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Concat",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input
    providers = (CPU,)
    targets = (Target.ORT,)
    lookback = 2

    def match(self, root: ir.Node) -> Match:
        """Parts of one value, at equal distances, of which rows of channels stay together."""
        result = root.outputs[0]
        need(ops.Concat(root).axis_of(rank(result)) == rank(result) - 1, "it does not join the last axis", root)
        found = next((one for one in maps(result, MAX_MOVES) if one.source is not result), None)
        if found is None:
            raise Refusal("it joins no parts of one value in an order of theirs", root)
        need_float32(found.source, "the gain was measured")
        need(all(map(is_used_once, inputs(root, len(root.inputs)))), "a part is used elsewhere", root)
        once = chain(found, root)
        need(not once.cuts and not once.repeats and once.nodes <= 3, "no Transpose does the same", root)
        need(not once.transposes or once.moves.keeps_last, "the channels do not stay together", root)
        return Match((root,), once.build)
