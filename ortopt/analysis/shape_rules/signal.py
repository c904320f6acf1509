"""Fourier transforms of signals and of their windows."""

from __future__ import annotations

from ortopt.analysis.shape_rules.registry import Call, Unknown, rule
from ortopt.graph import symbolic
from ortopt.graph.symbolic import UNKNOWN, Dim


@rule("STFT")
def stft(call: Call) -> None:
    """[batch, length, ...] to [batch, frames, bins, 2].

    onnx's own inference takes ``onesided`` for 0 where it is left out, against its default: twice the bins.
    """
    call.types[0] = call.dtype(0)
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


_AXIS_IS_INPUT_FROM = 20


@rule("DFT")
def dft(call: Call) -> None:
    """[..., length, ..., 1 or 2] to [..., bins, ..., 2]; a one-sided inverse gives real numbers.

    onnx's own inference knows no rank, either, where the length is computed by nodes.
    """
    call.types[0] = call.dtype(0)
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
    if call.version < _AXIS_IS_INPUT_FROM:
        axis = call.attribute("axis", 1)
    else:
        axis = call.integers(2)[0] if call.has(2) else -2
    if not -rank <= axis < rank - 1 or axis == -1:
        raise Unknown
    return int(axis) % rank
