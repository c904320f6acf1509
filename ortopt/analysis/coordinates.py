"""Integer tensors whose elements are a linear function of their place: what Range, Unsqueeze, Add and Mul make of one.

Masks are gathered, and compared, by such tensors: ``batch[b, 0, 0, 0] * sequence + position[0, 0, 0, s]``. They are
int64, and of a sum or a product that may leave its range nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import facts, symbolic
from ortopt.graph.integer_ranges import LIMITS
from ortopt.graph.match import Dim, array_of, is_constant, is_op, optional, same_dim, shape_of
from ortopt.graph.walk import Question, walk
from ortopt.semantics.op_traits import RESHAPING

MAX_CONSTANT = 1 << 16


class Linear(Struct, frozen=True):
    """``value[i, j, …] = offset + strides[0] * i + strides[1] * j + …`` wherever the indices lie within `dims`.

    Attributes:
        dims: The dimensions of the value.
        offset: The first element.
        strides: One an axis; 0 along an axis of dimension 1.
    """

    dims: tuple[Dim, ...]
    offset: Dim
    strides: tuple[Dim, ...]

    @property
    def moving(self) -> tuple[int, ...]:
        """The axes along which the elements differ."""
        return tuple(axis for axis, stride in enumerate(self.strides) if not same_dim(stride, 0))


def linear(value: ir.Value | None) -> Linear | None:
    """What an int64 tensor is as a function of the place of its elements, or None where that is not known.

    Args:
        value: A value.
    """
    return walk(_linear, value, unknown=None)


def _linear(value: ir.Value | None) -> Question[ir.Value | None, Linear | None]:
    if value is None or value.dtype != ir.DataType.INT64:
        return None
    dims = shape_of(value)
    if dims is None:
        return None
    number = _number(value)
    if number is not None:
        return Linear(dims, number, (0,) * len(dims))
    if is_constant(value):
        return _of_constant(value, dims)
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if is_op(node, "Range"):
        start, delta = _number(optional(node, 0)), _number(optional(node, 2))
        return None if start is None or delta is None else Linear(dims, start, (delta,))
    if is_op(node, "Identity", "Expand"):
        return _spread((yield optional(node, 0)), dims)
    if is_op(node, *RESHAPING):
        return _renamed((yield optional(node, 0)), dims)
    if is_op(node, "Add", "Sub"):
        left, right = node.inputs
        a, b = _spread((yield left), dims), _spread((yield right), dims)
        combine = symbolic.add if node.op_type == "Add" else symbolic.sub
        return None if a is None or b is None else _held(_combined(a, b, combine), value)
    if is_op(node, "Mul"):
        left, right = node.inputs
        if _number(right) is None:
            left, right = right, left
        factor, of = _number(right), _spread((yield left), dims)
        if factor is None or of is None:
            return None
        strides = tuple(symbolic.mul(one, factor) for one in of.strides)
        return _held(Linear(dims, symbolic.mul(of.offset, factor), strides), value)
    return None


def _held(form: Linear, value: ir.Value) -> Linear | None:
    """The result of a sum or product, if no element of it can leave the range of int64."""
    sizes = facts.sizes_of(value)
    most = sizes.magnitude(form.offset)
    for dim, stride in zip(form.dims, form.strides, strict=True):
        extent = sizes.magnitude(symbolic.mul(dim, stride))
        if most is None or extent is None:
            return None
        most += extent
    return form if most is not None and most <= LIMITS[ir.DataType.INT64][1] else None


def difference(a: Linear, b: Linear, dims: Sequence[Dim]) -> Linear | None:
    """``a - b`` where both are broadcast to some dimensions."""
    first, second = _spread(a, tuple(dims)), _spread(b, tuple(dims))
    return None if first is None or second is None else _combined(first, second, symbolic.sub)


def is_never_negative(form: Linear) -> bool:
    """Whether no element is below 0, whatever the dimensions are."""
    return symbolic.at_least(form.offset, 0) and all(symbolic.at_least(stride, 0) for stride in form.strides)


def is_never_positive(form: Linear) -> bool:
    """Whether no element is above 0, whatever the dimensions are."""
    return is_never_negative(
        Linear(form.dims, symbolic.sub(0, form.offset), tuple(symbolic.sub(0, one) for one in form.strides))
    )


def counts_up(form: Linear, total: Dim) -> bool:
    """Whether the elements, in their order, are 0, 1, 2 … up to a number of them."""
    if not same_dim(form.offset, 0) or not same_dim(symbolic.product(form.dims), total):
        return False
    below: Dim = 1
    for dim, stride in zip(reversed(form.dims), reversed(form.strides), strict=True):
        if not same_dim(dim, 1) and not same_dim(stride, below):
            return False
        below = symbolic.mul(below, dim)
    return True


def _number(value: ir.Value | None) -> Dim | None:
    """The one element of a value, if it has one and that is known."""
    known = None if value is None else facts.all_contents(value)
    return known[0] if known is not None and len(known) == 1 and symbolic.is_known(known[0]) else None


def _of_constant(value: ir.Value, dims: tuple[Dim, ...]) -> Linear | None:
    content = array_of(value)
    if not 0 < content.size <= MAX_CONSTANT:
        return None
    first = content[(0,) * content.ndim]
    strides = []
    expected = np.asarray(first)
    for axis, size in enumerate(content.shape):
        place = tuple(1 if axis == other else 0 for other in range(content.ndim))
        stride = int(content[place]) - int(first) if size > 1 else 0
        strides.append(stride)
        shape = (1,) * axis + (size,) + (1,) * (content.ndim - axis - 1)
        expected = expected + stride * np.arange(size, dtype=np.int64).reshape(shape)
    return Linear(dims, int(first), tuple(strides)) if np.array_equal(expected, content) else None


def _spread(form: Linear | None, dims: tuple[Dim, ...]) -> Linear | None:
    """A linear tensor broadcast to dimensions."""
    if form is None or len(form.dims) > len(dims):
        return None
    lead = len(dims) - len(form.dims)
    strides: list[Dim] = [0] * lead
    for dim, to, stride in zip(form.dims, dims[lead:], form.strides, strict=True):
        if not same_dim(dim, to) and not same_dim(stride, 0):
            return None
        strides.append(stride)
    return Linear(dims, form.offset, tuple(strides))


def _renamed(form: Linear | None, dims: tuple[Dim, ...]) -> Linear | None:
    """A linear tensor whose axes of dimension 1 come and go."""
    if form is None:
        return None
    kept = [(dim, stride) for dim, stride in zip(form.dims, form.strides, strict=True) if not same_dim(dim, 1)]
    places = [axis for axis, dim in enumerate(dims) if not same_dim(dim, 1)]
    if len(kept) != len(places) or not all(
        same_dim(dims[axis], dim) for axis, (dim, _) in zip(places, kept, strict=True)
    ):
        return None
    strides: list[Dim] = [0] * len(dims)
    for axis, (_, stride) in zip(places, kept, strict=True):
        strides[axis] = stride
    return Linear(dims, form.offset, tuple(strides))


def _combined(a: Linear, b: Linear, combine: Callable[[Dim, Dim], Dim]) -> Linear:
    return Linear(a.dims, combine(a.offset, b.offset), tuple(map(combine, a.strides, b.strides)))
