"""Quantized values around ops that need no arithmetic."""

from __future__ import annotations

import numpy as np

from fuzzing.families.movement import transpose
from fuzzing.families.quantization import dequantized, quantized
from fuzzing.families.reshaping import reshape
from fuzzing.patterns.registry import plant
from fuzzing.writer import F32, Writer


@plant
def _quantized_clip(w: Writer) -> None:
    x = w.pick((F32,), range(1, 5))
    y = (
        w.add("Relu", [x], show=False)
        if w.chance(0.5)
        else w.add("Clip", [x, w.scalar(w.one(0, -1), x, rank=0), w.scalar(w.one(6, 30), x, rank=0)], show=False)
    )
    q, how = quantized(w, y, show=w.chance(0.1))
    dequantized(w, q, how)


@plant
def _quantized_movement(w: Writer) -> None:
    """DQ, something that moves elements, Q."""
    x = w.pick((F32,), range(2, 5), lambda one: one.size > 0)
    q, how = quantized(w, x)
    y = dequantized(w, q, how, show=w.chance(0.1))
    for _ in range(w.one(1, 2)):
        y = (
            transpose(w, y, w.random.sample(range(y.rank), y.rank), show=False)
            if w.chance(0.5)
            else (reshape(w, y, show=False))
        )
    q = w.add("QuantizeLinear", [y, *(how if w.chance(0.85) else (w.constant(np.float32(0.3)), how[1]))], dtype=q.dtype,
              show=w.chance(0.1))  # fmt: skip
    dequantized(w, q, how)
