"""Arithmetic that can be simplified."""

from __future__ import annotations

import numpy as np

from fuzzing.patterns.operands import constant_number, fits
from fuzzing.patterns.registry import plant
from fuzzing.writer import F16, F32, F64, FLOATS, I32, I64, Writer


@plant
def _div_mul(w: Writer) -> None:
    x = w.pick((F32, F32, F64, F16, I64, I32))
    if x.dtype not in FLOATS:
        x = w.either("Add", w.add("Abs", [x], show=False), w.scalar(1, x, rank=0), show=False)
    inverse = w.elementwise("Div", constant_number(w, 1, x, 2), x, show=False)
    if w.chance(0.2) and x.dtype in FLOATS:
        inverse = w.add("Reciprocal", [x], show=False)
    w.either("Mul", inverse, w.partner(inverse))
    w.maybe_show(inverse)


@plant
def _reassociated(w: Writer) -> None:
    """(x + c1) + c2 and its kin."""
    x = w.pick((F32, F32, F64, F16, I64, I32))
    op = w.one("Add", "Mul", "Sub") if x.dtype not in FLOATS else w.one("Add", "Mul", "Sub", "Div")
    y = x
    for _ in range(w.one(2, 2, 3)):
        shape = () if x.rank == 0 or x.varies[-1] else w.one((), (1,), x.shape[-1:], (1, *x.shape[-1:]))
        constant = w.noise(shape, x.dtype) if op != "Div" else w.scalar(w.one(2, 4, 3), x, rank=len(shape))
        y = (
            w.either(w.usual(op, "Add"), y, constant, show=w.chance(0.1))
            if op not in ("Div", "Sub")
            else (w.elementwise(op, y, constant, show=w.chance(0.1)))
        )
    w.show(y)


@plant
def _powers(w: Writer) -> None:
    x = w.pick((F32, F64, F16))
    what = w.random.randrange(4)
    if what == 0:
        w.elementwise("Pow", x, constant_number(w, w.one(2, 3, 0.5, 1, 0, -1, -0.5), x))
    elif what == 1:
        w.elementwise("Div", constant_number(w, 1, x), w.add("Sqrt", [x], show=False))
    elif what == 2:
        w.add("Reciprocal", [w.add("Sqrt", [w.add("Abs", [x], show=False)], show=False)])
    else:
        w.add("Log", [w.add("Exp", [x], show=False)])


@plant
def _noop_arithmetic(w: Writer) -> None:
    x = w.pick((F32, F32, F64, F16, I64, I32))
    op, number = w.one(("Add", 0.0), ("Add", -0.0), ("Sub", 0.0), ("Sub", -0.0), ("Mul", 1.0), ("Div", 1.0))
    neutral = constant_number(w, number, x, 0.0, 1.0)
    if w.chance(0.1) and x.rank and not x.varies[-1]:
        neutral = w.constant(np.full(x.shape[-1:], number), x.dtype)
    if w.chance(0.1):
        neutral = w.constant(np.full(w.one((0,), (2,), (1, 1)), number), x.dtype)
        w.require(fits(x, neutral))
    w.elementwise(op, x, neutral) if op in ("Sub", "Div") and w.chance(0.9) else w.either(op, x, neutral)
