"""Ops that give the same elements another shape, and ops that ask for shapes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, Unknown, axes_of, broadcast, rule
from ortopt.graph import symbolic
from ortopt.graph.facts import INTEGERS, MAX_ELEMENTS, Dims, all_contents, elements, shape_from
from ortopt.graph.symbolic import UNKNOWN, Dim
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM

INT64 = ir.DataType.INT64
INFERRED = -1


@rule("Constant")
def constant(call: Call) -> None:
    """The type and shape of the attribute, and its elements where they are few integers."""
    for name, attribute in call.node.attributes.items():
        if attribute.is_ref():
            _typed_by_name(call, name)
            return
        value = attribute.value
        match name:
            case "value":
                dims = tuple(value.shape)
                call.set(0, value.dtype, shape_from(dims), elements(value, dims))
            case "sparse_value":
                call.set(0, value.dtype, tuple(value.shape))
            case "value_int":
                call.set(0, INT64, (), (value,))
            case "value_ints":
                call.set(0, INT64, (len(value),), value)
            case "value_float":
                call.set(0, ir.DataType.FLOAT, ())
            case "value_floats":
                call.set(0, ir.DataType.FLOAT, (len(value),))
            case "value_string":
                call.set(0, ir.DataType.STRING, ())
            case "value_strings":
                call.set(0, ir.DataType.STRING, (len(value),))
            case _:
                continue
        return


def _typed_by_name(call: Call, name: str) -> None:
    kind, _, plural = name.removeprefix("value_").partition("s")
    dtype = {"int": INT64, "float": ir.DataType.FLOAT, "tring": ir.DataType.STRING}.get(kind or plural)
    if name in {"value_string", "value_strings"}:
        call.set(0, ir.DataType.STRING, () if name == "value_string" else (UNKNOWN,))
    elif dtype is not None:
        call.set(0, dtype, (UNKNOWN,) if name.endswith("s") else ())


@rule("Shape", typed=INT64)
def shape(call: Call) -> None:
    """A vector of the dimensions between ``start`` and ``end``."""
    call.shapes[0] = (UNKNOWN,)
    dims = call.dims(0)
    start, end = call.attribute("start", 0), call.attribute("end", len(dims))
    dims = dims[_clamp(start, len(dims)) : _clamp(end, len(dims))]
    call.proven = dims
    call.set(0, INT64, (len(dims),), dims)


def _clamp(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)


@rule("Size")
def size(call: Call) -> None:
    """A scalar, the product of the dimensions."""
    call.set(0, INT64, ())
    call.proven = (symbolic.product(call.dims(0)),)
    call.set(0, INT64, (), call.proven)


@rule("Reshape", typed=0)
def reshape(call: Call) -> None:
    """What the second input says; -1 is what remains, 0 copies unless ``allowzero``."""
    target = call.attribute("shape") if call.version < 5 else call.elements(1)
    if target is None:
        call.shape_as_listed(1)
        return
    source = call.dims_or_none(0)
    call.shapes[0] = reshaped(call, source, target, allow_zero=call.attribute("allowzero", 0) == 1)
    call.keep_elements()


def reshaped(call: Call, source: Dims | None, target: Sequence[Dim], *, allow_zero: bool) -> Dims:
    """The shape that Reshape makes of ``source`` wherever it runs, unknown where that cannot be proven."""
    result: list[Dim] = []
    for axis, dim in enumerate(target):
        if not isinstance(dim, int):
            result.append(dim if _is_size(call, source, target, axis, allow_zero=allow_zero) else UNKNOWN)
        elif dim == 0 and not allow_zero:
            result.append(source[axis] if source is not None and axis < len(source) else UNKNOWN)
        else:
            result.append(dim if dim >= 0 else UNKNOWN)
    if source is None:
        return tuple(result)
    infers = INFERRED in target
    if infers and not allow_zero:
        _learn(call, source, target)
    unknown = [axis for axis, dim in enumerate(result) if not symbolic.is_known(dim)]
    if len(unknown) == 1 and (not infers or target[unknown[0]] == INFERRED):
        others = [dim for axis, dim in enumerate(result) if axis != unknown[0]]
        found = _remaining(call, source, others, fails=infers and not allow_zero, infers=infers)
        if found is not None:
            result[unknown[0]] = found
    if not allow_zero:
        _copy_for_zeros(result, source, target)
    return tuple(result)


def _copy_for_zeros(result: list[Dim], source: Dims, target: Sequence[Dim]) -> None:
    """A computed element of a target that may be 0 is the dimension of the source there, where it is."""
    for axis, (dim, copied, found) in enumerate(zip(target, source, result, strict=False)):
        if not symbolic.is_known(found) and isinstance(copied, int) and copied > 0 and symbolic.at_least(dim, 0):
            result[axis] = symbolic.where_zero(dim, copied)


def _is_size(call: Call, source: Dims | None, target: Sequence[Dim], axis: int, *, allow_zero: bool) -> bool:
    """Whether a computed element of a target is the result's dimension wherever the Reshape runs.

    It is not where it is -1, and where it is 0 and copies a dimension that is not 0. The latter fails where there is
    none to copy, and where there are no elements while each other dimension has some.
    """
    dim = target[axis]
    if not call.host.is_at_least(dim, 0) and not call.host.is_positive(symbolic.add(dim, 1)):
        return False
    if allow_zero or symbolic.at_least(dim, 1):
        return True
    if source is None:
        return call.host.is_positive(dim)
    if axis >= len(source):
        call.host.fails_without(call.node, dim)
        return True
    if symbolic.vanishes_with(source[axis], dim) or call.host.is_positive(dim):
        return True
    if not symbolic.vanishes_with(symbolic.product(source), dim):
        return False
    if not all(call.host.is_positive(other) for at, other in enumerate(target) if at != axis):
        return False
    if call.host.is_positive(source[axis]):
        call.host.fails_without(call.node, dim)  # nothing cannot have a shape with elements
    return True


def _learn(call: Call, source: Dims, target: Sequence[Dim]) -> None:
    """Beside a dimension of 0 none can be inferred: where the model runs, the others are not 0."""
    for own, dim in zip(source, target, strict=False):
        if dim == 0:
            call.host.fails_without(call.node, own)
        elif not isinstance(dim, int) and symbolic.vanishes_with(own, dim):
            call.host.fails_without(call.node, dim)


def _remaining(call: Call, source: Sequence[Dim], others: Sequence[Dim], *, fails: bool, infers: bool) -> Dim | None:
    """The dimension that makes the sizes equal, common dimensions cancelled even where they are unknown products.

    Args:
        call: The Reshape.
        source: The dimensions of what is reshaped.
        others: The known dimensions of the result.
        fails: Whether it fails where one of the others is 0.
        infers: Whether it infers the dimension; beside a 0 it then takes the product of those that are none.
    """
    left = list(source)
    divisor: list[Dim] = []
    for dim in others:
        match = next((index for index, own in enumerate(left) if symbolic.equal(own, dim)), None)
        if match is None:
            divisor.append(dim)
        else:
            del left[match]
    by = symbolic.product(divisor)
    whole = symbolic.product(left)
    if not (
        fails
        or (infers and all(map(call.host.is_positive, (*left, *divisor))))
        or all(map(call.host.is_positive, others))
    ):
        return _beside_zero(left, by, others) if infers else None
    if any(isinstance(dim, int) and dim == 0 for dim in (by, *others)):
        return None  # without elements, any number fits
    if isinstance(whole, int) and whole == 0 and not symbolic.at_least(by, 1):
        return None  # of nothing, by nothing: ONNX Runtime says 1
    exact = symbolic.quotient_exact(whole, by)
    if exact is not None:
        return exact
    # A remainder cannot be: the model would not run, so the quotient is exact.
    return symbolic.floordiv(whole, by) if symbolic.is_known(whole) and isinstance(by, int) else None


def _beside_zero(left: Sequence[Dim], by: Dim, others: Sequence[Dim]) -> Dim | None:
    """The dimension that is inferred with ``allowzero``: one of the source's, or 1 if that is 0 and another is, too."""
    symbols = [dim for dim in left if not isinstance(dim, int)]
    numbers = [dim for dim in (*left, by, *others) if isinstance(dim, int)]
    if len(symbols) != 1 or 0 in numbers or not isinstance(by, int):
        return None
    if symbolic.product(dim for dim in left if isinstance(dim, int)) != by:
        return None
    result: Dim = symbols[0]
    for dim in others:
        if not isinstance(dim, int):
            result = symbolic.maximum(result, symbolic.sub(1, dim))
    return result


@rule("Flatten", typed=0)
def flatten(call: Call) -> None:
    """Two dimensions: the product before the axis and the product from it on."""
    call.shapes[0] = (UNKNOWN, UNKNOWN)
    dims = call.dims(0)
    axis = call.attribute("axis", 1)
    if not -len(dims) <= axis <= len(dims):
        raise Unknown
    axis = axis + len(dims) if axis < 0 else axis
    call.shapes[0] = (symbolic.product(dims[:axis]), symbolic.product(dims[axis:]))
    call.keep_elements()


def _axes_argument(call: Call) -> tuple[int, ...] | None:
    """The axes of a Squeeze or Unsqueeze; None where they are left out."""
    if call.version < AXES_ARE_AN_INPUT_FROM[call.node.op_type]:
        axes = call.attribute("axes")
        return None if axes is None else tuple(axes)
    if not call.has(1):
        return None
    return call.integers(1)


@rule("Squeeze", typed=0)
def squeeze(call: Call) -> None:
    """Without the axes, or without all that are 1."""
    dims = call.dims(0)
    call.keep_elements()
    axes = _axes_argument(call)
    if not axes:
        if any(not isinstance(dim, int) and not symbolic.provably_different(dim, 1) for dim in dims):
            raise Unknown
        call.shapes[0] = tuple(dim for dim in dims if dim != 1)
        return
    dropped = set(axes_of(axes, len(dims)))
    call.shapes[0] = tuple(dim for axis, dim in enumerate(dims) if axis not in dropped)


@rule("Unsqueeze", typed=0)
def unsqueeze(call: Call) -> None:
    """With dimensions of 1 at the axes of the result."""
    dims = call.dims(0)
    axes = _axes_argument(call)
    if axes is None:
        raise Unknown
    rank = len(dims) + len(axes)
    inserted = set(axes_of(axes, rank))
    if len(inserted) != len(axes):
        raise Unknown
    rest = iter(dims)
    call.shapes[0] = tuple(1 if axis in inserted else next(rest) for axis in range(rank))
    call.keep_elements()


@rule("Transpose", typed=0)
def transpose(call: Call) -> None:
    """The dimensions in another order."""
    if len(source := call.shape(0)) <= 1:
        call.same(0, 0)
        call.contents[0] = call.elements(0)
        return
    order = call.attribute("perm")
    dims = source.dims
    if order is None:
        order = range(len(dims) - 1, -1, -1)
    if sorted(order) != list(range(len(dims))):
        raise Unknown
    call.shapes[0] = tuple(dims[axis] for axis in order)
    if (array := call.turns()) is not None:
        call.hold(array.transpose(order))


@rule("Expand", typed=0)
def expand(call: Call) -> None:
    """The input's shape broadcast with the second input's elements."""
    target = call.elements(1)
    if target is None:
        call.shape_as_listed(1, call.rank(0))
        return
    wanted = tuple(dim if call.host.is_at_least(dim, 0) else UNKNOWN for dim in target)
    result = broadcast(call.dims(0), wanted)
    call.shapes[0] = result
    known = call.elements(0)
    if known is None or len(known) != 1 or len(result) > 1:
        return
    count = result[0] if result else 1
    if isinstance(count, int) and count <= MAX_ELEMENTS:
        call.contents[0] = tuple(known) * count


@rule("Tile", typed=0)
def tile(call: Call) -> None:
    """Each dimension times its repeats."""
    dims = call.dims(0)
    call.shapes[0] = (UNKNOWN,) * len(dims)
    repeats = call.elements(1)
    if repeats is None or len(repeats) != len(dims):
        raise Unknown
    call.shapes[0] = tuple(map(symbolic.mul, dims, repeats))
    known = call.elements(0)
    if known is not None and len(repeats) == 1 and isinstance(repeats[0], int):
        call.set(0, call.dtype(0), call.shapes[0], tuple(known) * min(repeats[0], MAX_ELEMENTS + 1))


@rule("ConstantOfShape")
def constant_of_shape(call: Call) -> None:
    """A tensor of the shape that the input's elements say."""
    tensor = call.attribute("value")
    dtype = ir.DataType.FLOAT if tensor is None else tensor.dtype
    call.types[0] = dtype
    target = call.elements(0)
    if target is None:
        call.shape_as_listed(0)
        return
    call.shapes[0] = tuple(dim if symbolic.is_known(dim) else UNKNOWN for dim in target)
    if len(target) > 1 or tensor is None or dtype not in INTEGERS or tensor.size != 1:
        return
    count = target[0] if target else 1
    if isinstance(count, int) and 0 <= count <= MAX_ELEMENTS:
        element = int(tensor.numpy().reshape(-1)[0])
        call.contents[0] = (element,) * count


@rule("Range")
def range_(call: Call) -> None:
    """As many elements as steps from start to below limit, which ONNX Runtime counts with doubles."""
    dtype = call.dtype(0)
    call.set(0, dtype, (UNKNOWN,))
    if dtype not in INTEGERS:
        call.set(0, dtype, (_float_steps(call),))
        return
    bounds = [call.elements(index) for index in range(3)]
    if any(bound is None or len(bound) != 1 for bound in bounds):
        return
    start, limit, step = (bound[0] for bound in bounds if bound is not None)
    if not isinstance(step, int) or step == 0:
        return
    distance = symbolic.sub(limit, start) if step > 0 else symbolic.sub(start, limit)
    if not call.survives_doubles(start, limit, step, distance):
        return
    count = call.floored(symbolic.ceildiv(distance, abs(step)))
    call.shapes[0] = (count,)
    if isinstance(count, int) and count <= MAX_ELEMENTS:
        call.contents[0] = [symbolic.add(start, step * index) for index in range(count)]


_WHOLE_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types of Range with all integers of single precision."""


def _float_steps(call: Call) -> Dim:
    start, limit, step = (_number(call, index) for index in range(3))
    if isinstance(start, float) and isinstance(limit, float) and isinstance(step, float):
        return max(int(-((start - limit) // step)), 0) if step else UNKNOWN
    if start != 0 or step != 1 or limit is None or isinstance(limit, float) or call.dtype(0) not in _WHOLE_FLOATS:
        return UNKNOWN
    return call.floored(limit) if call.survives_floats(limit) else UNKNOWN


def _number(call: Call, index: int) -> float | Dim | None:
    """A constant, or the integer that a float is cast from; None for anything else."""
    tensor = call.constant(index)
    if tensor is not None:
        return float(tensor.numpy().reshape(-1)[0]) if tensor.size == 1 else None
    cast = call.value(index).producer()
    source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" and not cast.domain else None
    if source is None or source.dtype not in INTEGERS:
        return None
    known = all_contents(source) or ()
    return known[0] if len(known) == 1 else UNKNOWN


@rule("DepthToSpace", "SpaceToDepth")
def depth_and_space(call: Call) -> None:
    """[N, C, H, W] to [N, C/b², H*b, W*b], or to [N, C*b², H/b, W/b]."""
    call.set(0, call.dtype(0), (UNKNOWN,) * 4)
    batch, channels, height, width = call.dims(0)
    block = call.attribute("blocksize")
    fewer, more = symbolic.floordiv, symbolic.mul
    if call.node.op_type == "SpaceToDepth":
        fewer, more = more, fewer
    call.shapes[0] = (batch, fewer(channels, block * block), more(height, block), more(width, block))
