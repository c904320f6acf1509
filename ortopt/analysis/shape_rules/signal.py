"""Fourier transforms of windows."""

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
