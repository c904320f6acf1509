"""A lookup of position embeddings at the first positions is a Slice of the table."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    dims,
    inputs,
    integers,
    is_used_once,
    need,
    optional,
    producer,
    static_dims,
    tensor_of,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The Slice and the Gather, and along which axis of the table the positions are."""

    nodes: tuple[ir.Node, ...]
    table: ir.Value
    place: int


class GatherOfSliceFusion(RewriteRule[Found]):
    """``Gather(table, Slice([0, 1, 2 …]))`` → ``Slice(table)``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Gather",)
    opsets = (10, NEWEST_OPSET)  # the first with computed bounds; constant ones are folded

    def match(self, root: ir.Node) -> Found:
        """A Slice of a constant that counts all rows, in their order."""
        table, positions = inputs(root, 2)
        shape = tensor_of(table).shape.numpy()
        cut = producer(positions, "Slice")
        need(is_used_once(positions), "the positions are used elsewhere", positions)
        numbers = inputs(cut, 1)[0]
        place = ops.Gather(root).axis
        tensor = tensor_of(numbers)
        need(tensor.size == shape[place] and tensor.size > 0, "it is no slice of all rows", numbers)
        counting = np.arange(tensor.size).reshape(tensor.shape.numpy())
        need(bool(np.array_equal(array_of(numbers), counting)), "the positions are in another order", numbers)
        axes = optional(cut, 3)
        _ = static_dims(inputs(cut, 2)[1], 1) if axes is None else integers(axes)
        return Found((cut, root), table, place)

    def rewrite(self, found: Found) -> ir.Node:
        """Slice the table, in the shape that it has once all rows are taken."""
        cut, _ = found.nodes
        numbers, starts, ends = inputs(cut, 3)
        rank = len(dims(numbers))
        tensor = tensor_of(found.table)
        shape = tensor.shape.numpy()
        full = (*shape[: found.place], *tensor_of(numbers).shape.numpy(), *shape[found.place + 1 :])
        axes_value = optional(cut, 3)
        axes = range(static_dims(starts, 1)[0]) if axes_value is None else integers(axes_value)
        moved = constant(np.array([found.place + axis % rank for axis in axes], np.int64))
        table = found.table if len(full) == len(shape) else constant(array_of(found.table).reshape(full), tensor.dtype)
        steps = optional(cut, 4)
        return ir.node("Slice", [table, starts, ends, moved, *([] if steps is None else [steps])])
