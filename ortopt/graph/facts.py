"""What inference knows about one value, and where it is kept.

The type of a value is ``value.type`` and the shape of an intermediate value is ``value.shape``. These things do not fit
there and live in ``value.meta``, which is never written to a file:

- `SHAPE`: for inputs and outputs of graphs, whose declared shape is interface and stays as it is, what inference knows
  of it: a pair (the declared shape that it was computed beside, the proven shape, or None where nothing is proven). It
  is void once another shape is assigned to the value. Read it with `shape_of`.
- `CLAIM`: for intermediate values, the dimensions that the file declares where inference proves less. Nothing may rest
  on them: ONNX Runtime only warns where they are wrong. Read it with `claim_of`.
- `CONTENTS`: the elements of a small integer or boolean tensor, of any rank, in row-major order. Read it with
  `contents`; `set_contents` alone writes it, and keeps nothing that the value's dtype may not hold.
- `SCOPE`, on graphs: the number that makes invented symbols unique (internal to inference).
- `POSITIVE`, on graphs: the symbols and expressions that are not 0 wherever the model runs (internal to inference).
- `SIZES`, on graphs: how large expressions get in the model. Read it with `sizes_of`.
- `DECLARED`: set by a pass for a value whose shape the result's file should declare, because a runtime infers less.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

import onnx_ir as ir

from ortopt.graph.integer_ranges import EXACT_IN_DOUBLES, LIMITS, Sizes
from ortopt.graph.symbolic import UNKNOWN, Dim, canonical, is_invented, is_known
from ortopt.onnx_ir_internals import get_meta

SHAPE = "ortopt.shape"
CLAIM = "ortopt.claim"
CONTENTS = "ortopt.contents"
SCOPE = "ortopt.scope"
OPSETS = "ortopt.opsets"
POSITIVE = "ortopt.positive"
SIZES = "ortopt.sizes"
DECLARED = "ortopt.declared"

MAX_ELEMENTS = 64
"""Tensors with more elements are data, and not shapes."""

Dims: TypeAlias = tuple[Dim, ...]

INTEGERS = frozenset(LIMITS)
"""The types whose contents are tracked; booleans are 0 and 1."""


@lru_cache(1 << 14)
def shape_from(dims: Dims) -> ir.Shape:
    """The shape with these dimensions; frozen, and shared between all values that have it."""
    return ir.Shape(dims, frozen=True)


def shape_of(value: ir.Value) -> ir.Shape | None:
    """The best known shape of a value, or None where even the rank is unknown.

    For an intermediate value it is ``value.shape``; for an input or output of a graph it may say more than the shape
    that the file declares, or less: what is declared for a computed value is no proof.
    """
    shape = value.shape
    better = get_meta(value, SHAPE)  # of what was an output and is one no more, the declared shape is no proof either
    if better is not None and better[0] is shape:
        proven: ir.Shape | None = better[1]
        return proven
    if shape is None and value.const_value is not None:
        return shape_from(tuple(value.const_value.shape))
    return shape


def dims_of(value: ir.Value) -> Dims | None:
    """The best known dimensions of a value in canonical form, or None where even the rank is unknown."""
    shape = shape_of(value)
    return None if shape is None else tuple(dim if isinstance(dim, int) else canonical(dim) for dim in shape)


def contents(value: ir.Value) -> Dims | None:
    """The elements of a small integer or boolean tensor of rank 0 or 1, or None where they are not known.

    Returns:
        At most `MAX_ELEMENTS` integers or expressions; an element that is not known is the unknown dimension. For a
        scalar one element. Booleans are 0 and 1.
    """
    shape = shape_of(value)
    return None if shape is not None and len(shape) > 1 else all_contents(value)


def all_contents(value: ir.Value) -> Dims | None:
    """As `contents`, of any rank in row-major order: paddings are turned and cut as matrices before they are used."""
    if value.type is not None and value.dtype not in INTEGERS:
        return None
    known: Dims | None = get_meta(value, CONTENTS)
    if known is not None or value.const_value is None or value.is_graph_input():
        return known
    return elements(value.const_value)


def elements(tensor: ir.TensorProtocol, dims: Sequence[Dim] | None = None) -> Dims | None:
    """The elements of a small constant, as `all_contents` gives them; its dimensions spare asking it for them."""
    if tensor.dtype not in INTEGERS:
        return None
    size = tensor.size if dims is None else math.prod(dim for dim in dims if isinstance(dim, int))
    if size > MAX_ELEMENTS:
        return None
    try:
        numbers: list[int] = tensor.numpy().reshape(-1).tolist()
    except Exception:
        return None
    return tuple(map(int, numbers))


def set_contents(value: ir.Value, known: Sequence[Dim] | None, sizes: Sizes, proven: Iterable[Dim] = ()) -> None:
    """Keep what is known of the elements of a value; what its dtype may not hold becomes unknown.

    Args:
        value: A value whose type has been set; nothing is kept where that is not known.
        known: Its elements as mathematics has them, or None.
        sizes: How large expressions get.
        proven: Expressions that fit whatever `sizes` says: dimensions of a tensor, elements of one of the same type.
            They are asked for where something is in doubt.
    """
    dtype = value.dtype
    if known is None or dtype is None or dtype not in INTEGERS:
        if get_meta(value, CONTENTS) is not None:
            del value.meta[CONTENTS]
        return
    doubted = sizes.doubts(known, dtype)
    if doubted:
        doubted.difference_update(element for element in proven if not isinstance(element, int))
        known = [UNKNOWN if element in doubted else element for element in known]
    value.meta[CONTENTS] = tuple(known)


def is_exact_in_doubles(value: ir.Value) -> bool:
    """Whether a double has each element of an integer tensor: ONNX Runtime computes some integers as doubles."""
    if value.dtype not in INTEGERS:
        return False
    if value.dtype.bitwidth < EXACT_IN_DOUBLES.bit_length():
        return True
    known, sizes = all_contents(value), sizes_of(value)
    return known is not None and all(
        sizes.lies_within(element, -EXACT_IN_DOUBLES, EXACT_IN_DOUBLES) for element in known
    )


def sizes_of(value: ir.Value) -> Sizes:
    """How large expressions get in the model of a value."""
    graph = value.graph
    sizes = None if graph is None else graph.meta.get(SIZES)
    return sizes if isinstance(sizes, Sizes) else _OF_NO_MODEL


_OF_NO_MODEL = Sizes()


def set_better_shape(value: ir.Value, dims: Sequence[Dim] | None) -> None:
    """Keep what is known about an input or output of a graph beside its declared shape; None where nothing is."""
    shape, known = value.shape, None if dims is None else shape_from(tuple(dims))
    if (None if shape is None else shape.dims) == (None if known is None else known.dims):
        value.meta.pop(SHAPE, None)
    else:
        value.meta[SHAPE] = (shape, known)


def copy_facts(old: ir.Value, new: ir.Value) -> None:
    """Let a copy be declared as the original is, and known as well; what it holds is inferred where it stands."""
    new.type, new.shape = old.type, old.shape
    for key in (SHAPE, CLAIM):
        if (fact := get_meta(old, key)) is not None:
            new.meta[key] = fact


def claim_of(value: ir.Value) -> Dims | None:
    """The dimensions that the file declares for a computed value, where inference does not prove all of them, or None.

    Nothing may rest on them: they are what a refusal tells the user about, and what a saved file goes on declaring.
    """
    better = get_meta(value, SHAPE)
    if better is not None and better[0] is value.shape:
        declared = None if better[0] is None else better[0].dims
        proven = better[1]
    else:
        declared, proven = get_meta(value, CLAIM), value.shape
    if declared is None:
        return None
    if proven is None:
        return tuple(declared)
    if len(proven) != len(declared):
        return None
    more = any(says_more(claimed, dim) for claimed, dim in zip(declared, proven, strict=True))
    return tuple(declared) if more else None


@contextlib.contextmanager
def believed(values: Sequence[ir.Value]) -> Iterator[None]:
    """Take claims for facts, to see what difference they would make; nothing may be rewritten meanwhile."""
    before = [(value, value.shape, get_meta(value, SHAPE)) for value in values]
    try:
        for value in values:
            claim = claim_of(value)
            value.meta.pop(SHAPE, None)
            value.shape = None if claim is None else shape_from(claim)
        yield
    finally:
        for value, shape, known in before:
            value.shape = shape
            if known is not None:
                value.meta[SHAPE] = known


def says_more(claimed: Dim, proven: Dim) -> bool:
    """Whether a declared dimension says something where nothing is proven."""
    return is_known(claimed) and (not is_known(proven) or is_invented(proven))


def declared_shape(value: ir.Value) -> ir.Shape | None:
    """The shape to declare for a value in a file: what is proven, and what its file claims where nothing is."""
    shape = value.shape
    if get_meta(value, CLAIM) is None or value.is_graph_output() or (claimed := claim_of(value)) is None:
        return shape
    if shape is None:
        return shape_from(claimed)
    return shape_from(
        tuple(claim if says_more(claim, dim) else dim for claim, dim in zip(claimed, shape.dims, strict=True))
    )
