"""Ops on elements: arithmetic, comparisons, Where, Clip and casts."""

from __future__ import annotations

from typing import Final

import numpy as np

from fuzzing.families.registry import family
from fuzzing.writer import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    FLOATS,
    I8,
    I32,
    I64,
    INTEGERS,
    NUMBERS,
    U8,
    Attributes,
    Value,
    Writer,
)

_UNARY: Final = {
    "Relu": 13, "Neg": 13, "Abs": 13, "Sigmoid": 13, "Tanh": 13, "Erf": 13, "Floor": 13, "Ceil": 13, "Round": 13,
    "Sign": 13, "Softplus": 13, "Softsign": 13, "Elu": 13, "Selu": 13, "LeakyRelu": 13, "HardSigmoid": 13,
    "HardSwish": 14, "Mish": 18, "Gelu": 20, "Sin": 13, "Cos": 13, "Identity": 13, "Celu": 13, "Exp": 13,
    "ThresholdedRelu": 13, "Reciprocal": 13, "Sqrt": 13, "Log": 13, "Swish": 24,
}  # fmt: skip


def chain(w: Writer, x: Value, *, show: bool = True) -> Value:
    """An op of one operand that keeps type and shape."""
    if x.dtype in FLOATS:
        op = w.one(*(name for name, since in _UNARY.items() if since <= w.opset))
        attributes: Attributes = {"alpha": w.one(0.1, 0.5, 1.0)} if op in ("LeakyRelu", "Elu") and w.chance(0.6) else {}
        if op == "Gelu" and w.chance(0.4):
            attributes = {"approximate": "tanh"}
        return w.add(op, [x], show=show, **attributes)
    if x.dtype in INTEGERS:
        return w.add(w.one("Neg", "Abs", "Identity", "Sign"), [x], show=show)
    if x.dtype == BOOL:
        return w.add(w.one("Not", "Not", "Identity"), [x], show=show)
    return w.add("Identity", [x], show=show)


@family(4)
def _unary(w: Writer) -> None:
    x = w.pick((*NUMBERS, BOOL))
    for _ in range(w.one(1, 1, 1, 2, 3)):
        x = chain(w, x, show=w.chance(0.7))


@family(1.5)
def _twice(w: Writer) -> None:
    x = w.pick((*NUMBERS, BOOL))
    if x.dtype == BOOL:
        pool: tuple[str, ...] = ("Not",)
    elif x.dtype in INTEGERS:
        pool = ("Neg", "Abs", "Sign")
    else:
        pool = ("Relu", "Abs", "Ceil", "Floor", "Round", "Sign", "Neg", "Sigmoid", "Exp")
    op = w.one(*pool)
    for _ in range(w.one(2, 2, 3)):
        x = w.add(op, [x], show=w.chance(0.3))


def _binary_op(w: Writer, x: Value) -> str:
    if x.dtype in INTEGERS:
        return w.one("Add", "Sub", "Mul", "Max", "Min")
    return w.one("Add", "Sub", "Mul", "Add", "Mul", "Max", "Min", "Div")


@family(5)
def _binary(w: Writer) -> None:
    x = w.pick(NUMBERS)
    w.either(_binary_op(w, x), x, w.partner(x))


@family(1)
def _same_twice(w: Writer) -> None:
    """Common subexpressions, some only nearly."""
    x = w.pick(NUMBERS)
    y = w.partner(x)
    op = w.one("Add", "Mul", "Sub", "Max")
    w.elementwise(op, x, y)
    if w.chance(0.5):
        x, y = y, x
    w.elementwise(w.usual(op, "Min"), x, y)


@family(4)
def _with_constant(w: Writer) -> None:
    x = w.pick(NUMBERS)
    broadcast = list(x.shape[w.random.randrange(x.rank + 1) :])
    for i, dim in enumerate(broadcast):
        if w.chance(0.4) or (x.varies[i - len(broadcast)] and w.chance(0.9)):
            broadcast[i] = 1
        elif dim == 1 and w.chance(0.1):
            broadcast[i] = 3
    broadcast = [1] * w.one(0, 0, 0, 0, 1) + broadcast
    if len(broadcast) > 5:
        broadcast = broadcast[-5:]
    other = w.special(broadcast, x.dtype) if w.chance(0.7) else w.noise(broadcast, x.dtype)
    op = _binary_op(w, x) if x.dtype in INTEGERS else w.one("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu")
    if op == "PRelu":
        w.require(len(broadcast) <= x.rank and np.broadcast_shapes(x.shape, tuple(broadcast)) == x.shape)
        w.elementwise("PRelu", x, other)
    elif op == "Pow":
        exponent = w.scalar(w.one(1, 2, 3, 0.5, 0, -1), x)
        if w.chance(0.3):
            exponent = w.scalar(w.one(1, 2, 3), Value("", w.one(I64, I32, F32), x.shape, x.varies))
        w.elementwise("Pow", x, exponent)
    else:
        w.either(op, x, other)


@family(1)
def _several(w: Writer) -> None:
    x = w.pick(FLOATS)
    operands = [x] + [w.like(x) for _ in range(w.one(0, 1, 2, 3))]
    w.add(w.one("Sum", "Max", "Min", "Mean"), operands)


@family(2)
def _compare(w: Writer) -> None:
    x = w.pick(NUMBERS)
    y = w.partner(x) if w.chance(0.5) else w.special((1,), x.dtype)
    pool = ("Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual")
    c = w.elementwise(w.one(*pool), x, y, dtype=BOOL)
    if w.chance(0.4):
        c = w.add("Not", [c])
    if w.chance(0.3):
        w.either(w.one("And", "Or", "Xor"), c, w.partner(c))


@family(1)
def _predicate(w: Writer) -> None:
    w.add(w.one("IsNaN", "IsInf"), [w.pick((F32, F64))], dtype=BOOL)


@family(3)
def _where(w: Writer) -> None:
    x = w.pick((*NUMBERS, BOOL))
    y = w.partner(x) if w.chance(0.7) else w.special((1,), x.dtype) if x.dtype != BOOL else w.like(x)
    if w.chance(0.4):
        c = w.pick((BOOL,), where=lambda one: broadcasts(one, x, y))
    else:
        c = w.elementwise("Greater", x, y, dtype=BOOL) if x.dtype != BOOL else x
    if w.chance(0.5):
        c = w.add("Not", [c], show=w.chance(0.3))
    w.require(broadcasts(c, x, y))
    shape = np.broadcast_shapes(c.shape, x.shape, y.shape)
    varies = [any(one.varies[-i] for one in (c, x, y) if one.rank >= i) for i in range(len(shape), 0, -1)]
    w.add("Where", [c, x, y] if w.chance(0.5) else [c, y, x], shape, varies, dtype=x.dtype)


def broadcasts(*values: Value) -> bool:
    """Whether the shapes of some values broadcast, to a shape that is not too large."""
    try:
        return int(np.prod(np.broadcast_shapes(*(value.shape for value in values)))) <= 2048
    except ValueError:
        return False


@family(2)
def _clip(w: Writer) -> None:
    x = w.pick((F32, F32, F64, F16, I32, I64))
    if w.chance(0.5) and x.dtype in FLOATS:
        x = w.add("Relu", [x], show=w.chance(0.2))
    low: Value | None = w.scalar(w.one(0, -1, 0.5, 2, -0.0, float("nan") if x.dtype in FLOATS else 0), x, rank=0)
    high: Value | None = w.scalar(w.one(6, 1, 0, float("inf") if x.dtype in FLOATS else 5), x, rank=0)
    if w.chance(0.2):
        low = None
    if w.chance(0.3):
        high = None
    if w.chance(0.1) and low is not None:
        low = w.add("Identity", [low], show=False)
    y = w.add("Clip", [x, low, high])
    if w.chance(0.3) and x.dtype in FLOATS:
        w.add("Relu", [y])


_CASTS: Final = (F32, F32, F64, F16, BF16, I32, I64, U8, I8, BOOL)


@family(3)
def _cast(w: Writer) -> None:
    x = w.pick((*NUMBERS, BOOL, U8, I8))
    last = x
    for _ in range(w.one(1, 2, 2, 3)):
        if x.dtype in FLOATS and w.chance(0.3):
            x = w.add("Relu", [x], show=False)  # what is outside of an integer's range is undefined
        to = w.one(*_CASTS, x.dtype, last.dtype)
        if x.dtype in (*FLOATS, BF16) and to in (U8, I8):
            to = I32
        last = x
        if w.opset >= 15 and w.chance(0.2):
            like = w.noise((1,), to) if to not in (BF16,) else w.constant(np.ones(1), to)
            x = w.add("CastLike", [x, like], x.shape, x.varies, dtype=to, show=w.chance(0.4))
        else:
            x = w.add("Cast", [x], dtype=to, to=to, show=w.chance(0.4))
    if x.dtype == BF16:
        x = w.add("Cast", [x], dtype=F32, to=F32, show=False)
    w.show(x)


@family(0.7)
def _integers(w: Writer) -> None:
    x = w.pick(INTEGERS)
    divisor = w.scalar(w.one(1, 2, 3, -1), x)
    w.elementwise(w.one("Div", "Div", "Mod"), x, divisor)
    if w.opset >= 18 and w.chance(0.3):
        w.either(w.one("BitwiseAnd", "BitwiseOr", "BitwiseXor"), x, w.partner(x))
