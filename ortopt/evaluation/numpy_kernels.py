"""Constants computed in numpy, bit for bit as ONNX Runtime computes them: shape arithmetic, and moving data about.

Only what is exact by its nature is here: integers, comparisons, data movement, IEEE additions and the like, and what
there is only one answer to for some operands (`ortopt.evaluation.partial_kernels`). What rounds in a way of its own
(transcendental functions, float reductions, float16 arithmetic) is ONNX Runtime's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.evaluation.call import Array, Call, HazardError, UnsupportedHereError, check_signature
from ortopt.evaluation.partial_kernels import power, resized
from ortopt.ops.moves import taken
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM, BOUNDS_ARE_INPUTS_FROM, SIZES_ARE_AN_INPUT_FROM

LAZY_BYTES = 1 << 20
"""From this size on a moved or cast weight is computed when its contents are read."""


def compute(call: Call) -> tuple[Array, ...]:
    """The outputs of a node.

    Raises:
        UnsupportedHereError: It is not computed here.
        HazardError: It must not be computed.
    """
    kernel = KERNELS.get(call.node.op_type)
    if kernel is None:
        raise UnsupportedHereError(call.node.op_type)
    check_signature(call)
    with _refusals(), np.errstate(all="ignore"):
        return kernel(call)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (ValueError, IndexError, OverflowError, TypeError) as error:  # numpy's "no such shape, no such element"
        raise HazardError(str(error)) from error


def reshaped_dims(call: Call) -> tuple[int, ...]:
    """The shape that one of `RESHAPES` gives its operand.

    Raises:
        UnsupportedHereError: It is not computed here.
        HazardError: There is no such shape.
    """
    with _refusals():
        return RESHAPES[call.node.op_type](call)


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis; raises where there is no such axis."""
    if not -rank <= axis < rank:
        raise HazardError(f"there is no axis {axis} in {rank} dimensions")
    return axis % rank


def _axes(call: Call) -> list[int] | None:
    """The axes of a Squeeze, an Unsqueeze or a reduction; None where they are left out."""
    if call.opset >= AXES_ARE_AN_INPUT_FROM[call.node.op_type]:
        return call.integers(1) if call.has(1) else None
    axes = call.attributes.get_ints("axes")
    return None if axes is None else list(axes)


# Shapes that need no data


_MOST = 2**56
"""No array has more elements, dimensions of 0 left out."""


def _reshape(call: Call) -> tuple[int, ...]:
    if call.opset < 5:
        raise UnsupportedHereError("Reshape-1 has its shape as an attribute")
    shape = call.operand(0).shape
    target = call.integers(1)
    if call.attributes.get_int("allowzero", 0) != 1:
        target = [shape[i] if dim == 0 and i < len(shape) else dim for i, dim in enumerate(target)]
    size = math.prod(shape)
    if target.count(-1) == 1:
        rest = math.prod(dim for dim in target if dim != -1)
        if rest <= 0 or size % rest:
            raise HazardError("Reshape cannot infer a dimension")
        target[target.index(-1)] = size // rest
    if any(dim < 0 for dim in target) or math.prod(target) != size or math.prod(max(dim, 1) for dim in target) > _MOST:
        raise HazardError(f"Reshape of {list(shape)} to {target}")
    return tuple(target)


def _flatten(call: Call) -> tuple[int, ...]:
    shape = call.operand(0).shape
    axis = call.attributes.get_int("axis", 1)
    if not -len(shape) <= axis <= len(shape) or (axis < 0 and call.opset < 11):
        raise HazardError(f"Flatten has no axis {axis}")
    axis = axis + len(shape) if axis < 0 else axis
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def _squeeze(call: Call) -> tuple[int, ...]:
    shape = call.operand(0).shape
    axes = _axes(call)
    if not axes:
        return tuple(dim for dim in shape if dim != 1)
    gone = {axis_of(axis, len(shape)) for axis in axes}
    if any(shape[axis] != 1 for axis in gone):
        raise HazardError("Squeeze of a dimension that is not 1")
    return tuple(dim for i, dim in enumerate(shape) if i not in gone)


def _unsqueeze(call: Call) -> tuple[int, ...]:
    shape = call.operand(0).shape
    axes = _axes(call)
    if axes is None:
        raise HazardError("Unsqueeze without axes")
    rank = len(shape) + len(axes)
    new = {axis_of(axis, rank) for axis in axes}
    if len(new) != len(axes):
        raise HazardError("Unsqueeze with an axis twice")
    old = iter(shape)
    return tuple(1 if i in new else next(old) for i in range(rank))


def _same(call: Call) -> tuple[int, ...]:
    return call.operand(0).shape


RESHAPES: dict[str, Callable[[Call], tuple[int, ...]]] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Identity": _same,
}


def permutation(call: Call) -> list[int]:
    """The axes of a Transpose."""
    rank = len(call.operand(0).shape)
    perm = call.attributes.get_ints("perm")
    axes = list(range(rank))[::-1] if perm is None else list(perm)
    if sorted(axes) != list(range(rank)):
        raise HazardError(f"Transpose with permutation {axes} of {rank} dimensions")
    return axes


# Moving data


def _reshaped(call: Call) -> tuple[Array, ...]:
    return (call.array(0).reshape(RESHAPES[call.node.op_type](call)),)


def _transpose(call: Call) -> tuple[Array, ...]:
    return (np.array(call.array(0).transpose(permutation(call)), order="C"),)


def _shape(call: Call) -> tuple[Array, ...]:
    shape = call.operand(0).shape
    start, end = call.attributes.get_int("start", 0), call.attributes.get_int("end", len(shape))
    return (np.array(shape[_clamp(start, len(shape)) : _clamp(end, len(shape))], np.int64),)


def _clamp(position: int, size: int) -> int:
    return min(max(position + size if position < 0 else position, 0), size)


def _size(call: Call) -> tuple[Array, ...]:
    return (np.array(math.prod(call.operand(0).shape), np.int64),)


def _concat(call: Call) -> tuple[Array, ...]:
    arrays = [call.array(i) for i in range(len(call.operands))]
    axis = axis_of(call.attributes.get_int("axis", 1), arrays[0].ndim)
    if len({array.dtype for array in arrays}) != 1:
        raise HazardError("Concat of several dtypes")
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    call.allow(shape, arrays[0].itemsize)
    return (np.concatenate(arrays, axis),)


def _gather(call: Call) -> tuple[Array, ...]:
    data, indices = call.array(0), call.array(1)
    axis = axis_of(call.attributes.get_int("axis", 0), data.ndim)
    call.allow((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), data.itemsize)
    size = data.shape[axis]
    if indices.size and not -size <= int(indices.min()) <= int(indices.max()) < size:  # of nothing numpy takes any
        raise HazardError(f"Gather of places that {size} elements do not have")
    if data.dtype.kind in "OSU" and math.prod(data.shape[axis + 1 :]) > 1:
        raise HazardError("ONNX Runtime moves the first string of a slice alone, others move all")
    return (np.asarray(np.take(data, indices, axis)),)


def _slice(call: Call) -> tuple[Array, ...]:
    data = call.array(0)
    if call.opset < BOUNDS_ARE_INPUTS_FROM["Slice"]:
        starts, ends = list(call.attributes.get_ints("starts", ())), list(call.attributes.get_ints("ends", ()))
        axes, steps = list(call.attributes.get_ints("axes", range(len(starts)))), [1] * len(starts)
    else:
        starts, ends = call.integers(1), call.integers(2)
        axes = call.integers(3) if call.has(3) else list(range(len(starts)))
        steps = call.integers(4) if call.has(4) else [1] * len(starts)
    axes = [axis_of(axis, data.ndim) for axis in axes]
    if len({len(starts), len(ends), len(axes), len(steps)}) != 1 or len(set(axes)) != len(axes) or 0 in steps:
        raise HazardError("Slice with operands that do not fit together")
    cut = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        places = taken(data.shape[axis], start, end, step)
        if len(places) < 2:  # numpy has no steps beyond its integers
            cut[axis] = slice(places.start, places.start + len(places))
        else:
            cut[axis] = slice(places.start, None if places.stop < 0 else places.stop, step)
    return (np.array(data[tuple(cut)]),)


def _split(call: Call) -> tuple[Array, ...]:
    data = call.array(0)
    axis = axis_of(call.attributes.get_int("axis", 0), data.ndim)
    size, count = data.shape[axis], len(call.node.outputs)
    parts: list[int] | None
    if call.opset >= SIZES_ARE_AN_INPUT_FROM["Split"]:
        parts = call.integers(1) if call.has(1) else None
    else:
        split = call.attributes.get_ints("split")
        parts = None if split is None else list(split)
    if parts is None:
        if call.opset < 18 and size % count:
            raise HazardError("Split into unequal parts")
        part = -(-size // count)
        parts = [part] * (count - 1) + [size - part * (count - 1)]
        if (call.opset >= 18 and parts[-1] < 1) or call.attributes.get_int("num_outputs", count) != count:
            raise HazardError(f"Split of {size} into {count}")
    if len(parts) != count or any(part < 0 for part in parts) or sum(parts) != size:
        raise HazardError(f"Split of {size} into {parts}")
    bounds = np.cumsum(parts)[:-1]
    return tuple(np.array(part) for part in np.split(data, bounds, axis))


def _expand(call: Call) -> tuple[Array, ...]:
    data, target = call.array(0), call.integers(1)
    call.allow(target, 1)
    shape = np.broadcast_shapes(data.shape, tuple(target))
    call.allow(shape, data.itemsize)
    return (np.array(np.broadcast_to(data, shape)),)


def _tile(call: Call) -> tuple[Array, ...]:
    if call.opset < 6:
        raise UnsupportedHereError("Tile-1")
    data, repeats = call.array(0), call.integers(1)
    if len(repeats) != data.ndim or any(repeat < 0 for repeat in repeats):
        raise HazardError("Tile with repeats that do not fit")
    call.allow([dim * repeat for dim, repeat in zip(data.shape, repeats, strict=True)], data.itemsize)
    return (np.tile(data, repeats),)


def _where(call: Call) -> tuple[Array, ...]:
    condition, then, other = call.array(0), call.array(1), call.array(2)
    if then.dtype != other.dtype or condition.dtype != np.bool_:
        raise HazardError("Where of several dtypes")
    call.allow(np.broadcast_shapes(condition.shape, then.shape, other.shape), then.itemsize)
    return (np.where(condition, then, other),)


def _constant_of_shape(call: Call) -> tuple[Array, ...]:
    shape = call.integers(0)
    value = call.attributes.get_tensor("value")
    fill = np.zeros(1, np.float32) if value is None else value.numpy().reshape(-1)
    if fill.size != 1:
        raise HazardError("ConstantOfShape with several values")
    if value is not None and len(value.shape) != 1:
        raise UnsupportedHereError("ConstantOfShape of a value that is no vector")
    call.allow(shape, fill.itemsize)
    return (np.full(shape, fill[0], fill.dtype),)


def _range(call: Call) -> tuple[Array, ...]:
    start, limit, delta = (call.array(i) for i in range(3))
    if start.dtype.kind != "i" or not start.dtype == limit.dtype == delta.dtype:
        raise UnsupportedHereError("Range of floats accumulates in a way of its own")
    first, last, step = int(start.reshape(-1)[0]), int(limit.reshape(-1)[0]), int(delta.reshape(-1)[0])
    if step == 0:
        raise HazardError("Range with a step of 0")
    if max(abs(first), abs(last), abs(step), abs(last - first)) > min(_EXACT_IN_DOUBLE, np.iinfo(start.dtype).max):
        raise HazardError("Range counts its steps in double")
    count = max(0, -((first - last) // step))
    call.allow((count,), start.itemsize)
    return (np.arange(first, first + count * step, step, dtype=np.int64)[:count].astype(start.dtype),)


def _non_zero(call: Call) -> tuple[Array, ...]:
    data = call.array(0)
    if data.ndim == 0 or data.dtype.kind not in "biuf":
        raise UnsupportedHereError("NonZero of a scalar")
    return (np.stack(np.nonzero(data)).astype(np.int64),)


# Casts

_NATIVE = {np.dtype(code) for code in ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")}


def cast(array: Array, target: np.dtype[Any]) -> Array:
    """A cast whose result the standard leaves no choice about.

    Raises:
        UnsupportedHereError: ORT may round, saturate or spell it in a way of its own.
    """
    with np.errstate(all="ignore"):
        return _cast_exactly(array, target)


def _cast_exactly(array: Array, target: np.dtype[Any]) -> Array:
    source = array.dtype
    if source == target:
        return array
    half = np.dtype(np.float16)
    if source == half and target.kind == "f" and not np.isnan(array).any():
        return array.astype(target)
    if target == half and source == np.float32 and not np.isnan(array).any():
        return array.astype(target)
    if source not in _NATIVE or target not in _NATIVE:
        raise UnsupportedHereError(f"Cast of {source} to {target}")
    if source.kind == "f" and target.kind in "iu" and array.size:
        low, high = float(np.iinfo(target).min), float(np.iinfo(target).max)
        if not (array.min() >= low and array.max() < high):  # false for NaN too
            raise UnsupportedHereError("Cast of floats that do not fit")
    if source.kind == "f" and target.kind == "f" and np.isnan(array).any():
        raise UnsupportedHereError("Cast of NaN keeps or loses its payload")
    return array.astype(target)


def cast_target(call: Call) -> np.dtype[Any]:
    """The dtype that a Cast or CastLike node asks for."""
    if call.node.op_type == "CastLike":
        number = int(call.operand(1).dtype)
    else:
        if call.opset < 6:
            raise UnsupportedHereError("Cast-1 spells its type")
        number = call.attributes.get_int("to", 0)
    if number in (0, ir.DataType.STRING) or call.operand(0).dtype == ir.DataType.STRING:
        raise UnsupportedHereError("Cast of strings")
    return np.dtype(ir.DataType(number).numpy())


def _cast(call: Call) -> tuple[Array, ...]:
    target = cast_target(call)
    call.allow(call.operand(0).shape, target.itemsize)
    return (cast(call.array(0), target),)


# Arithmetic

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def _pair(call: Call, kinds: str) -> tuple[Array, Array]:
    a, b = call.array(0), call.array(1)
    if a.dtype != b.dtype:
        raise HazardError(f"{call.node.op_type} of {a.dtype} and {b.dtype}")
    if a.dtype not in _NATIVE or a.dtype.kind not in kinds:
        raise UnsupportedHereError(f"{call.node.op_type} of {a.dtype}")
    if call.opset < 7 and call.node.op_type not in ("Min", "Max"):
        raise UnsupportedHereError("broadcasting by attribute")
    call.allow(np.broadcast_shapes(a.shape, b.shape), a.itemsize)
    return a, b


def _binary(function: Callable[[Array, Array], Array], kinds: str) -> Callable[[Call], tuple[Array, ...]]:
    def kernel(call: Call) -> tuple[Array, ...]:
        a, b = _pair(call, kinds)
        return (np.asarray(function(a, b)),)

    return kernel


def _guard_division(a: Array, b: Array) -> None:
    if (b == 0).any():
        raise HazardError("an integer division by zero")
    if a.dtype.kind == "i" and (b == -1).any() and (a == np.iinfo(a.dtype).min).any():
        raise HazardError("the smallest integer divided by -1")


def _divide(call: Call) -> tuple[Array, ...]:
    a, b = _pair(call, "iuf")
    if a.dtype.kind == "f":
        return (np.asarray(a / b),)
    _guard_division(a, b)
    quotient = np.asarray(a // b)
    # C truncates, numpy floors.
    return (np.asarray(quotient + ((quotient < 0) & (quotient * b != a))).astype(a.dtype),)


_EXACT_IN_DOUBLE = 2**53


def _is_exact_in_double(array: Array) -> bool:
    """Whether a runtime may compute with these integers in double, as ONNX Runtime does here and there."""
    return array.dtype.itemsize < 8 or not array.size or _largest(array) <= _EXACT_IN_DOUBLE


def _largest(array: Array) -> int:
    """The largest magnitude; the smallest integer has one, which numpy does not know."""
    return max(abs(int(array.min())), abs(int(array.max())))


def _modulo(call: Call) -> tuple[Array, ...]:
    a, b = _pair(call, "iu")
    _guard_division(a, b)
    if call.attributes.get_int("fmod", 0) and not all(_is_exact_in_double(operand) for operand in (a, b)):
        raise HazardError("fmod of integers is computed in double")
    return (np.asarray(np.fmod(a, b) if call.attributes.get_int("fmod", 0) else np.mod(a, b)),)


def _unary(function: Callable[[Array], Array], kinds: str) -> Callable[[Call], tuple[Array, ...]]:
    def kernel(call: Call) -> tuple[Array, ...]:
        x = call.array(0)
        if x.dtype not in _NATIVE or x.dtype.kind not in kinds:
            raise UnsupportedHereError(f"{call.node.op_type} of {x.dtype}")
        return (np.asarray(function(x)),)

    return kernel


def _extreme(function: Callable[[Array, Array], Array]) -> Callable[[Call], tuple[Array, ...]]:
    def kernel(call: Call) -> tuple[Array, ...]:
        arrays = [call.array(i) for i in range(len(call.operands))]
        if any(array.dtype.kind not in "iu" for array in arrays):
            raise UnsupportedHereError("floats have NaN and two zeros")
        call.allow(np.broadcast_shapes(*(array.shape for array in arrays)), arrays[0].itemsize)
        result = arrays[0]
        for array in arrays[1:]:
            result = np.asarray(function(result, array))
        return (result,)

    return kernel


def _guard_reduction(op: str, x: Array, over: tuple[int, ...]) -> None:
    """Leave to ONNX Runtime what leaves the dtype or double: it sums and multiplies in double, and then saturates."""
    if op not in ("ReduceSum", "ReduceProd"):
        return
    magnitudes = np.abs(x.astype(np.float64))
    reach = magnitudes.sum(axis=over) if op == "ReduceSum" else np.maximum(magnitudes, 1).prod(axis=over)
    if (reach >= min(_EXACT_IN_DOUBLE, np.iinfo(x.dtype).max)).any():
        raise UnsupportedHereError("a sum or product that may not fit")


def _reduce(function: Any) -> Callable[[Call], tuple[Array, ...]]:
    def kernel(call: Call) -> tuple[Array, ...]:
        x = call.array(0)
        if x.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise UnsupportedHereError("only integers reduce in any order")
        if not x.size:
            raise UnsupportedHereError("a reduction of nothing")
        axes = _axes(call)
        noop: int = call.attributes.get_int("noop_with_empty_axes", 0)
        if not axes and call.opset >= AXES_ARE_AN_INPUT_FROM[call.node.op_type] and noop == 1:
            return (x,)
        over = tuple(axis_of(axis, x.ndim) for axis in axes) if axes else tuple(range(x.ndim))
        _guard_reduction(call.node.op_type, x, over)
        keep: int = call.attributes.get_int("keepdims", 1)
        return (np.asarray(function.reduce(x, axis=over, keepdims=keep == 1, dtype=x.dtype)),)

    return kernel


KERNELS: dict[str, Callable[[Call], tuple[Array, ...]]] = {
    **dict.fromkeys(RESHAPES, _reshaped),
    "Transpose": _transpose,
    "Shape": _shape,
    "Size": _size,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Expand": _expand,
    "Tile": _tile,
    "Where": _where,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Resize": resized,
    "NonZero": _non_zero,
    "Cast": _cast,
    "CastLike": _cast,
    "Add": _binary(np.add, "iuf"),
    "Sub": _binary(np.subtract, "iuf"),
    "Mul": _binary(np.multiply, "iuf"),
    "Div": _divide,
    "Mod": _modulo,
    "Pow": power,
    "Neg": _unary(np.negative, "if"),
    "Abs": _unary(np.abs, "iuf"),
    "Floor": _unary(np.floor, "f"),
    "Ceil": _unary(np.ceil, "f"),
    "Sqrt": _unary(np.sqrt, "f"),  # correctly rounded, by IEEE 754
    "Not": _unary(np.logical_not, "b"),
    "And": _binary(np.logical_and, "b"),
    "Or": _binary(np.logical_or, "b"),
    "Xor": _binary(np.logical_xor, "b"),
    "Equal": _binary(np.equal, "biuf"),
    "Less": _binary(np.less, "iuf"),
    "Greater": _binary(np.greater, "iuf"),
    "LessOrEqual": _binary(np.less_equal, "iuf"),
    "GreaterOrEqual": _binary(np.greater_equal, "iuf"),
    "Min": _extreme(np.minimum),
    "Max": _extreme(np.maximum),
    "ReduceSum": _reduce(np.add),
    "ReduceProd": _reduce(np.multiply),
    "ReduceMax": _reduce(np.maximum),
    "ReduceMin": _reduce(np.minimum),
}

# Division by an integer is decided here or nowhere: ONNX Runtime would be killed by what is refused here.
ONLY_HERE = frozenset({("Div", "i"), ("Div", "u"), ("Mod", "i"), ("Mod", "u")})


def tensor_of(array: Array) -> ir.TensorProtocol:
    """A tensor over the array's memory; sub-byte dtypes are packed when they are written."""
    if array.dtype.kind in "OSU":
        return ir.StringTensor(np.asarray(array, object), shape=ir.Shape(array.shape))
    return ir.Tensor(array, shape=ir.Shape(array.shape))
