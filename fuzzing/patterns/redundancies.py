"""Results that are computed twice, and casts there and back."""

from __future__ import annotations

import numpy as np

from fuzzing.patterns.registry import plant
from fuzzing.writer import BOOL, F16, F32, F64, FLOATS, I32, I64, U8, Writer


@plant
def _there_and_back_by_cast(w: Writer) -> None:
    x = w.pick((F32, F16, F64, I32, I64, BOOL, U8))
    between = w.one(F32, F64, F16, I64, I32)
    if x.dtype in FLOATS and between not in FLOATS:
        x = w.add("Sigmoid", [x], show=False)
    y = w.add("Cast", [x], dtype=between, to=between, show=w.chance(0.2))
    to = w.usual(x.dtype, F32)
    w.add("Cast", [y], dtype=to, to=to)


@plant
def _twins(w: Writer) -> None:
    """Two equal pieces of graph, equal constants among them."""
    x = w.pick((F32, F32, F64), range(1, 5))
    number, op = w.one(0.5, 0.0, -0.0, 2.0), w.one("Add", "Mul", "Max")
    made = []
    for _ in range(2):
        y = w.elementwise(op, x, w.constant(np.full((1,), number if w.chance(0.85) else -number), x.dtype))
        made.append(w.add(w.one("Tanh", "Tanh", "Sigmoid"), [y]))
    w.either("Mul", *made)
