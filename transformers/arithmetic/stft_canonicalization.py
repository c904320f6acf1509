"""The default of an attribute, which onnx's shape inference reads wrongly, is written out."""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import need
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The STFT."""

    nodes: tuple[ir.Node, ...]


class StftCanonicalization(RewriteRule[Found]):
    """``STFT(x)`` → ``STFT(x, onesided=1)``, its default.

    The shape inference of onnx, which ONNX Runtime runs when it loads a model, assumes 0 instead. This has no effect
    while the length of the signal is unknown. Once it is known, the model would not load any more.
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
        return ops.copied(stft, stft.inputs, onesided=1)
