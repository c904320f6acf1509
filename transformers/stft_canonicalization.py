"""The default of an attribute, which onnx's shape inference reads wrongly, is written out."""

from typing import NamedTuple

import onnx_ir as ir

from ortopt.graph.match import need
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(NamedTuple):
    """The STFT."""

    nodes: tuple[ir.Node, ...]


class StftCanonicalization(RewriteRule[Found]):
    """``STFT(x)`` → ``STFT(x, onesided=1)``, its default.

    onnx's inference, which ONNX Runtime runs when it loads a model, takes 0 for it. As long as the signal's length is
    unknown nothing comes of that; once it is known, the model does not load any more.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("STFT",)
    opsets = (17, NEWEST_OPSET)
    lookback = 0

    def match(self, root: ir.Node) -> Found:
        """No attribute."""
        need("onesided" not in root.attributes, "onesided is there", root)
        return Found((root,))

    def rewrite(self, found: Found) -> ir.Node:
        """Spell it out."""
        (stft,) = found.nodes
        return ir.Node("", "STFT", stft.inputs, [*stft.attributes.values(), ir.AttrInt64("onesided", 1)])
