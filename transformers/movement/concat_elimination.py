"""A Concat of one value, of nothing, or of what a Split took apart only copies."""

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import inputs, is_op, need, plain_attributes, same_dim, shape_of
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The Concat, and the operands that are left, in order."""

    nodes: tuple[ir.Node, ...]
    operands: tuple[ir.Value, ...]


class ConcatElimination(RewriteRule[Found]):
    """``Concat(x)``, ``Concat(Split(x))`` → ``x``; operands that are empty along the axis are dropped."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("concat_merging",)  # the parts of a Split may be joined in several Concats
    roots = ("Concat",)
    opsets = (4, NEWEST_OPSET)  # before, the axis could be left out

    def match(self, root: ir.Node) -> Found:
        """Fewer operands that give the same."""
        operands = inputs(root, len(root.inputs))
        need(len(operands) > 0, "it has no operands", root)
        plain_attributes(root)
        left = _joined(operands, root)
        left = [value for value in left if not _is_empty(value, root)] or [left[0]]
        need(len(left) == 1 or len(left) < len(operands), "each operand is needed", root)
        return Found((root,), tuple(left))

    def rewrite(self, found: Found) -> ir.Node | ir.Value:
        """Let users read the one operand, or join those that are left."""
        if len(found.operands) == 1:
            return found.operands[0]
        return ops.copied(found.nodes[0], found.operands)


def _joined(operands: Sequence[ir.Value], root: ir.Node) -> list[ir.Value]:
    """The operands, where all parts of a Split in their order are replaced by its input."""
    result: list[ir.Value] = []
    position = 0
    while position < len(operands):
        split = operands[position].producer()
        if split is not None and is_op(split, "Split"):
            parts = split.outputs
            run = operands[position : position + len(parts)]
            whole = len(run) == len(parts) and all(a is b for a, b in zip(run, parts, strict=True))
            source = split.inputs[0]
            if whole and source is not None and ops.Split(split).is_along(ops.Concat(root), source):
                result.append(source)
                position += len(parts)
                continue
        result.append(operands[position])
        position += 1
    return result


def _is_empty(value: ir.Value, root: ir.Node) -> bool:
    """Whether a value adds nothing; one of another rank, which ONNX Runtime takes if it is empty, is left alone."""
    shape, whole = shape_of(value), shape_of(root.outputs[0])
    if shape is None or (whole is not None and len(whole) != len(shape)):
        return False
    return same_dim(shape[ops.Concat(root).axis_of(len(shape))], 0)
