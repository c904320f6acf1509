"""Activations that are spelled out."""

from __future__ import annotations

import math

import numpy as np

from fuzzing.patterns.operands import constant_number, constant_row, features
from fuzzing.patterns.registry import plant
from fuzzing.writer import F16, F32, F64, FLOATS, Writer


@plant
def _gelu(w: Writer) -> None:
    x = features(w) if w.chance(0.7) else w.pick(FLOATS)
    if w.chance(0.3) and x.rank:
        w.require(not x.varies[-1])
        x = w.either("Add", x, constant_row(w, x))
    if w.chance(0.5):
        a = w.elementwise("Div", x, constant_number(w, math.sqrt(2), x, 2.0), show=False)
    else:
        a = w.either("Mul", x, constant_number(w, math.sqrt(0.5), x, 0.5), show=False)
    e = w.add(w.usual("Erf", "Tanh", odds=0.95), [a], show=False)
    p = w.either(w.usual("Add", "Sub", odds=0.95), e, constant_number(w, 1.0, x), show=False)
    factor = x if w.chance(0.93) else w.like(x)
    order = w.random.randrange(4)
    if order == 0:
        y = w.either("Mul", w.either("Mul", factor, p, show=False), constant_number(w, 0.5, x))
    elif order == 1:
        y = w.either("Mul", w.either("Mul", factor, constant_number(w, 0.5, x), show=False), p)
    elif order == 2:
        y = w.either("Mul", w.either("Mul", p, constant_number(w, 0.5, x), show=False), factor)
    else:
        y = w.elementwise("Div", w.either("Mul", factor, p, show=False), constant_number(w, 2.0, x))
    w.maybe_show(a, e, p, y)


@plant
def _fast_gelu(w: Writer) -> None:
    x = features(w) if w.chance(0.7) else w.pick(FLOATS)
    if w.chance(0.3) and x.rank:
        w.require(not x.varies[-1])
        x = w.either("Add", x, constant_row(w, x))
    if w.chance(0.6):
        exponent = constant_number(w, 3.0, x, 2.0)
        cube = w.elementwise("Pow", x, exponent, show=False)
    else:
        cube = w.either("Mul", w.elementwise("Mul", x, x, show=False), x, show=False)
    inner = w.either("Add", x, w.either("Mul", cube, constant_number(w, 0.044715, x), show=False), show=False)
    t = w.add("Tanh", [w.either("Mul", inner, constant_number(w, 0.7978845608, x), show=False)], show=False)
    p = w.either("Add", t, constant_number(w, 1.0, x), show=False)
    half = w.either("Mul", x, constant_number(w, 0.5, x), show=False)
    y = w.either("Mul", half, p)
    w.maybe_show(cube, inner, t, p, y)


@plant
def _quick_gelu(w: Writer) -> None:
    x = w.pick(FLOATS)
    a = w.either("Mul", x, constant_number(w, w.one(1.702, 1.0, 0.5), x), show=False) if w.chance(0.8) else x
    s = w.add(w.usual("Sigmoid", "Tanh"), [a], show=False)
    w.either("Mul", x if w.chance(0.93) else w.like(x), s)
    w.maybe_show(a, s)


@plant
def _composed_activation(w: Writer) -> None:
    """Hard swish, mish, softplus, leaky relu and the like, spelled out."""
    what = w.random.randrange(9)
    if what > 4:
        (_clamped if what > 6 else _halves)(w)
        return
    x = w.pick((F32, F32, F64, F16))
    if what == 0:
        s = w.either("Add", x, constant_number(w, 3.0, x), show=False)
        c = w.add("Clip", [s, w.scalar(0, x, rank=0), w.scalar(w.usual(6, 5), x, rank=0)], show=False)
        y = w.either("Mul", x, c, show=False)
        w.elementwise("Div", y, constant_number(w, 6.0, x))
    elif what == 1:
        s = w.add("HardSigmoid", [x], show=False, alpha=w.usual(1 / 6, 0.2), beta=0.5)
        w.either("Mul", x, s)
    elif what == 2:
        s = w.add("Tanh", [w.add("Softplus", [x], show=False)], show=False)
        w.either("Mul", x, s)
    elif what == 3:
        s = w.either("Add", w.add("Exp", [x], show=False), constant_number(w, 1.0, x), show=False)
        w.add("Log", [s])
    else:
        s = w.either("Mul", x, constant_number(w, 0.1, x), show=False)
        w.add("Max", [x, s], np.broadcast_shapes(x.shape, s.shape), None if x.rank < s.rank else x.varies) if (
            x.rank >= s.rank
        ) else None


def _clamped(w: Writer) -> None:
    """Gates and clamps: hard sigmoid, hard swish, ReLU6, in other spellings."""
    x = w.pick((F32, F32, F64, F16))
    top = w.one(6.0, 1.0, 5.0)
    slope = w.usual(1.0, 0.2, odds=0.6)
    s = x if slope == 1.0 else w.either("Mul", x, constant_number(w, slope, x), show=False)
    s = w.either("Add", s, constant_number(w, w.one(top / 2, 0.5, -1.0), x), show=False)
    if w.chance(0.4):
        c = w.add("Clip", [s, w.scalar(0, x, rank=0), w.scalar(top, x, rank=0)], show=False)
    elif w.chance(0.5):
        r = w.add("Relu", [s], show=False)
        c = w.either("Min", r, constant_number(w, top, x), show=False)
    else:
        r = w.either("Max", s, constant_number(w, 0.0, x), show=False)
        c = w.either("Min", r, constant_number(w, top, x), show=False)
    if w.chance(0.5):
        c = w.elementwise("Div", c, constant_number(w, w.usual(top, 3.0), x), show=False)
    if w.chance(0.6):
        c = w.either("Mul", x if w.chance(0.93) else w.like(x), c, show=False)
    w.elementwise("Div", c, constant_number(w, w.one(top, 2.0), x))
    w.maybe_show(s, c)


def _halves(w: Writer) -> None:
    """Sloped Relus, exponential units and the like, chosen by Where or put together of two halves."""
    x = w.pick((F32, F32, F64, F16))
    slope = constant_number(w, w.one(0.1, 0.25, -0.5, 2.0), x)
    zero = constant_number(w, 0.0, x)
    what = w.random.randrange(4)
    if what == 0:
        n = w.add("Relu", [w.add("Neg", [x], show=False)], show=False)
        p = w.add("Relu", [x], show=False)
        w.elementwise(w.one("Sub", "Add"), p, w.either("Mul", n, slope, show=False))
    elif what == 1:
        e = w.elementwise("Sub", w.add("Exp", [x], show=False), constant_number(w, 1.0, x), show=False)
        p = w.add("Relu", [x], show=False)
        w.either("Add", p, w.either("Min", e, zero, show=False))
    elif what == 2:
        a = w.either("Add", w.add("Abs", [x], show=False), constant_number(w, w.usual(1.0, 2.0), x), show=False)
        w.elementwise("Div", x, a)
    else:
        w.elementwise(w.one("Max", "Min"), x, w.either("Mul", x, slope, show=False))
