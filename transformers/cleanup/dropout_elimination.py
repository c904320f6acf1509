"""At inference a Dropout only copies; its mask says that everything stays."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.edit import constant
from ortopt.graph.match import array_of, attribute, inputs, need, opset, optional, static_dims
from ortopt.onnx_ir_internals import use_count
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule


class Found(Struct, frozen=True):
    """The Dropout, what it copies, and the fixed shape of its mask where that is used."""

    nodes: tuple[ir.Node, ...]
    data: ir.Value
    mask: tuple[int, ...] | None


class DropoutElimination(RewriteRule[Found]):
    """``Dropout(x)`` at inference → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Dropout",)

    def match(self, root: ir.Node) -> Found:
        """A Dropout that surely does not train, with a mask that is unused or of fixed shape."""
        (data,) = inputs(root, 1)
        version = opset(root)
        if version >= 12:
            mode = optional(root, 2)
            need(mode is None or not array_of(mode).any(), "it is in training mode", root)
        elif version < 7:
            need(attribute(root, "is_test", 0) != 0, "it is in training mode", root)
        mask = root.outputs[1] if len(root.outputs) > 1 else None
        if mask is None or not (use_count(mask) or mask.is_graph_output()):
            return Found((root,), data, None)
        # ONNX Runtime fills it with false, ONNX's reference with true.
        need(version >= 12, "before opset 12 runtimes disagree about the mask", mask)
        return Found((root,), data, static_dims(data))

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Let its users read what it copies, and a mask of ones."""
        (root,) = found.nodes
        replacements = {root.outputs[0]: found.data}
        if found.mask is not None:
            replacements[root.outputs[1]] = constant(np.ones(found.mask, dtype=np.bool_))
        return replacements
