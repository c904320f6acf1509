"""An assignment to all of a tensor, as exporters write ``mask[:, :, :, :n] = …``, leaves nothing of what was there."""

import numpy as np
import onnx_ir as ir

from ortopt.graph import facts
from ortopt.graph.match import (
    Dim,
    array_of,
    attribute,
    axis,
    dims,
    inputs,
    integers,
    is_constant,
    is_op,
    need,
    optional,
    producer,
    same_dim,
)
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule
from ortopt.semantics.op_traits import RESHAPING

MAX_STEPS = 8
"""So many shapes of one Range are looked through."""


class ScatterElimination(RewriteRule[Forwarded]):
    """``ScatterND(x, places, updates)`` with all places, each in its place → ``updates``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("expand_fusion", "shape_sharing")
    roots = ("ScatterND",)
    lookback = MAX_STEPS

    def match(self, root: ir.Node) -> Forwarded:
        """Updates as large as the tensor, and indices that count along each of its axes."""
        x, indices, updates = inputs(root, 3)
        need(attribute(root, "reduction", "none") == "none", "the updates are combined with what is there", root)
        shape = dims(x)
        need(all(map(same_dim, dims(updates, len(shape)), shape)), "the updates may be others than all", updates)
        joined = producer(indices, "Concat")
        parts = inputs(joined, len(shape))
        last = axis(joined, len(shape) + 1, 0) == len(shape)
        need(len(joined.inputs) == len(shape) and last, "the indices are not put together by axis", joined)
        for place, part in enumerate(parts):
            _check_counts(part, place, shape)
        return Forwarded((root,), updates)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read the updates."""
        return found.value


def _check_counts(part: ir.Value, place: int, shape: tuple[Dim, ...]) -> None:
    """Refuse a part of the indices that is not each element's position along one axis."""
    node = producer(part, "Unsqueeze")
    added = optional(node, 1)
    axes = tuple(attribute(node, "axes", ()) if added is None else integers(added))
    need(axes in {(-1,), (len(shape),)}, "the indices have no axis of their own", node)
    expand = producer(node.inputs[0], "Expand")
    whole = dims(expand.outputs[0], len(shape))
    need(all(map(same_dim, whole, shape)), "the indices may be for a part", expand)
    counted, _ = inputs(expand, 2)
    own = dims(counted)
    behind = len(shape) - place
    fits = len(own) >= behind or same_dim(shape[place], 1)
    alone = all(dim == 1 or len(own) - at == behind for at, dim in enumerate(own))
    need(fits and alone, "an index is not for one axis", counted)
    need(same_dim(own[-behind] if len(own) >= behind else 1, shape[place]), "not all positions are named", counted)
    _check_range(counted)


def _check_range(value: ir.Value) -> None:
    """Refuse what does not count up from 0, whatever its shape."""
    for _ in range(MAX_STEPS):
        node = value.producer()
        if not is_op(node, *RESHAPING, "Identity") or node is None or node.inputs[0] is None:
            break
        value = node.inputs[0]
    if is_constant(value):
        content = array_of(value).reshape(-1)
        need(np.array_equal(content, np.arange(content.size)), "the indices do not count from 0", value)
        return
    start, _, step = inputs(producer(value, "Range"), 3)
    need(_is(start, 0) and _is(step, 1), "the indices do not count from 0", value)


def _is(value: ir.Value, number: int) -> bool:
    known = facts.all_contents(value)
    return known is not None and len(known) == 1 and same_dim(known[0], number)
