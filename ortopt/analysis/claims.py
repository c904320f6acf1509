"""What files declare of the shapes of computed values: claims, kept beside what is proven."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import meet
from ortopt.graph import scope
from ortopt.graph.facts import CLAIM, CONTENTS, Dims, says_more, set_better_shape
from ortopt.graph.symbolic import UNKNOWN, Dim, canonical, is_invented, provably_different
from ortopt.onnx_ir_internals import get_meta


def leave_claims(graph: ir.Graph) -> None:
    """Take nothing for proven in a graph and in those below it: what the file declares stays a claim."""
    for below in scope.below(graph):
        for value in (*below.inputs, *(value for node in below for value in node.outputs)):
            value.meta.pop(CONTENTS, None)
            set_better_shape(value, None)


def keep_claim(value: ir.Value, proven: Dims | None) -> None:
    """Remember what the file declares of an intermediate value beyond what is proven, unless that is proven wrong."""
    claimed, before = dims_of_declared(value), get_meta(value, CLAIM)
    if claimed is None:
        claimed = before
    elif before is not None and len(before) == len(claimed):  # the shape is what an earlier inference has proven
        claimed = tuple(map(meet, claimed, before))
    if claimed is None:
        return
    wrong = proven is not None and (len(claimed) != len(proven) or any(map(provably_different, claimed, proven)))
    if wrong or (proven is not None and not any(map(says_more, claimed, proven))):
        value.meta.pop(CLAIM, None)
    else:
        value.meta[CLAIM] = claimed


def dims_of_declared(value: ir.Value) -> Dims | None:
    """The dimensions that a value's shape states, in canonical form; invented ones count as unknown."""
    shape = value.shape
    return dims_of_constant(value) if shape is None else without_invented(shape.dims)


def dims_of_constant(value: ir.Value) -> Dims | None:
    """The dimensions of a value's constant, or None where it is no constant."""
    return None if value.const_value is None else tuple(value.const_value.shape)  # type: ignore[arg-type]


def without_invented(dims: Iterable[Dim]) -> Dims:
    """The dimensions in canonical form, those with invented symbols as unknown ones."""
    return tuple(dim if isinstance(dim, int) else UNKNOWN if is_invented(dim) else canonical(dim) for dim in dims)
