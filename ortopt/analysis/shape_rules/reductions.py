"""Ops that go along whole axes: reductions, Einsum, Fourier transforms."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, Unknown, axes_of, axis_of, broadcast, broadcast_dim, rule
from ortopt.graph import symbolic
from ortopt.graph.facts import INTEGERS, Dims
from ortopt.graph.symbolic import UNKNOWN, Dim
from ortopt.semantics.op_traits import REDUCTIONS
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM, DFT_AXIS_IS_AN_INPUT_FROM


@rule(*REDUCTIONS, typed=0)
def reduce(call: Call) -> None:
    """1 at the axes, or without them where ``keepdims`` is not 1."""
    dims = call.dims(0)
    keep = call.attribute("keepdims", 1) == 1
    since = AXES_ARE_AN_INPUT_FROM[call.node.op_type]
    if call.version < since:
        axes = call.attribute("axes")
    elif call.has(1):
        found = call.elements(1)
        if found is None or not all(isinstance(axis, int) for axis in found):
            if keep:
                call.shapes[0] = (UNKNOWN,) * len(dims)
            return
        axes = call.integers(1)
    else:
        axes = None
    if not axes:
        if call.version >= since and call.attribute("noop_with_empty_axes", 0) == 1:
            call.shapes[0] = call.shape(0)
            return
        axes = range(len(dims))
    reduced = set(axes_of(axes, len(dims)))
    if _miscounts(dims, axes):
        if keep:
            call.shapes[0] = (UNKNOWN,) * len(dims)
        return
    if keep:
        call.shapes[0] = tuple(1 if axis in reduced else dim for axis, dim in enumerate(dims))
    else:
        call.shapes[0] = tuple(dim for axis, dim in enumerate(dims) if axis not in reduced)
    if len(dims) == 1 and reduced:
        _follow(call)


def _miscounts(dims: Dims, axes: Iterable[int]) -> bool:
    """Whether ONNX Runtime leaves dimensions alone that are to be reduced: negative axes, where there is no element."""
    return 0 in dims and any(axis < 0 for axis in axes)


def _follow(call: Call) -> None:
    operation = {
        "ReduceProd": symbolic.mul,
        "ReduceSum": symbolic.add,
        "ReduceMax": symbolic.maximum,
        "ReduceMin": symbolic.minimum,
    }.get(call.node.op_type)
    if operation is None or call.dtype(0) not in INTEGERS:
        return
    found = call.elements(0)
    if not found:
        return
    if call.node.op_type in _IN_DOUBLES and not _survives_doubles(call, found):
        return
    result: Dim = found[0]
    for element in found[1:]:
        result = operation(result, element)
    call.contents[0] = (result,)


_IN_DOUBLES = frozenset({"ReduceProd", "ReduceSum"})
"""What ONNX Runtime computes with doubles, also of integers: it rounds and saturates, and does not wrap around."""


def _survives_doubles(call: Call, found: Sequence[Dim]) -> bool:
    """Whether no sum, or product, of some of the elements rounds, in any order."""
    terms = [abs(element) if isinstance(element, int) else element for element in found]
    if not all(symbolic.at_least(term, 0) for term in terms):
        return False
    if call.node.op_type == "ReduceProd":
        return call.survives_doubles(symbolic.product(symbolic.maximum(term, 1) for term in terms))
    return call.survives_doubles(functools.reduce(symbolic.add, terms))


@rule("ArgMax", "ArgMin", typed=ir.DataType.INT64)
def arg_extremum(call: Call) -> None:
    """Indices, with the axis 1 or gone."""
    dims = call.dims(0)
    stated = call.attribute("axis", 0)
    axis = axis_of(stated, len(dims))
    if _miscounts(dims, (stated,)):
        raise Unknown
    kept = (1,) if call.attribute("keepdims", 1) == 1 else ()
    call.shapes[0] = dims[:axis] + kept + dims[axis + 1 :]


_ELLIPSIS = "..."


@rule("Einsum", typed=0)
def einsum(call: Call) -> None:
    """The dimensions that the output's letters name; those of a letter, and of an ellipsis, broadcast."""
    equation = "".join(call.attribute("equation").split())
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs):
        raise Unknown
    sizes: dict[str, Dim] = {}
    rest: Dims = ()
    for index, term in enumerate(terms):
        before, dots, after = term.partition(_ELLIPSIS)
        dims = call.dims(index)
        hidden = len(dims) - len(before) - len(after)
        if hidden < 0 or (hidden and not dots) or "." in before + after:
            raise Unknown
        rest = broadcast(rest, dims[len(before) : len(before) + hidden])
        shown = dims[: len(before)] + dims[len(before) + hidden :]
        for letter, dim in zip(before + after, shown, strict=True):
            sizes[letter] = broadcast_dim(sizes.get(letter, 1), dim)
    if not arrow:
        letters = "".join(sorted(letter for letter in sizes if left.count(letter) == 1))
        right = (_ELLIPSIS if _ELLIPSIS in left else "") + letters
    before, dots, after = right.partition(_ELLIPSIS)
    if rest and not dots:
        raise Unknown
    call.shapes[0] = (*(sizes[letter] for letter in before), *rest, *(sizes[letter] for letter in after))


@rule("STFT", typed=0)
def stft(call: Call) -> None:
    """[batch, length, ...] to [batch, frames, bins, 2].

    onnx's own inference takes ``onesided`` for 0 where it is left out, against its default: twice the bins.
    """
    signal = call.dims(0)
    if len(signal) not in (2, 3):
        raise Unknown
    call.shapes[0] = (signal[0], UNKNOWN, UNKNOWN, 2)
    frame = _frame(call)
    bins = symbolic.add(symbolic.floordiv(frame, 2), 1) if call.attribute("onesided", 1) else frame
    call.shapes[0] = (signal[0], UNKNOWN, bins, 2)
    (step,) = call.integers(1)
    if step < 1:
        raise Unknown
    frames = symbolic.add(symbolic.floordiv(symbolic.sub(signal[1], frame), step), 1)
    call.shapes[0] = (signal[0], UNKNOWN if isinstance(frames, int) and frames < 0 else frames, bins, 2)


def _frame(call: Call) -> Dim:
    """How many samples a frame has."""
    if call.has(3):
        return call.integers(3)[0]
    if not call.has(2):
        raise Unknown
    return call.dims(2)[0]


@rule("DFT", typed=0)
def dft(call: Call) -> None:
    """[..., length, ..., 1 or 2] to [..., bins, ..., 2]; a one-sided inverse gives real numbers.

    onnx's own inference knows no rank, either, where the length is computed by nodes.
    """
    dims = list(call.dims(0))
    axis = _transformed_axis(call, len(dims))
    one_sided, inverse = call.attribute("onesided", 0), call.attribute("inverse", 0)
    dims[-1] = 1 if one_sided and inverse else 2
    source, dims[axis] = dims[axis], UNKNOWN
    call.shapes[0] = tuple(dims)
    if call.has(1):
        (length,) = call.elements(1) or (UNKNOWN,)
    elif one_sided and inverse:
        length = symbolic.mul(symbolic.sub(source, 1), 2)
    elif one_sided:
        length = source
    else:
        dims[axis] = source  # whatever it is
        call.shapes[0] = tuple(dims)
        return
    if length is UNKNOWN or not call.host.is_positive(length):
        return
    dims[axis] = symbolic.add(symbolic.floordiv(length, 2), 1) if one_sided and not inverse else length
    call.shapes[0] = tuple(dims)


def _transformed_axis(call: Call, rank: int) -> int:
    """The axis that is transformed, from the start; the last one holds real and imaginary parts."""
    if call.version < DFT_AXIS_IS_AN_INPUT_FROM:
        axis = call.attribute("axis", 1)
    else:
        axis = call.integers(2)[0] if call.has(2) else -2
    if not -rank <= axis < rank - 1 or axis == -1:
        raise Unknown
    return int(axis) % rank
