"""What the passes look for, whole or with one condition broken: that is where wrong rewrites live."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from fuzzing.families import (
    batch_normalization,
    chain,
    convolution,
    dequantized,
    family,
    image,
    pad,
    quantized,
    reduce,
    reshape,
    transpose,
)
from fuzzing.writer import BOOL, F16, F32, F64, FLOATS, I32, I64, NUMBERS, U8, Attributes, Value, Writer

PLANTS: Final[list[Callable[[Writer], None]]] = []
"""One for each pattern."""


def plant(function: Callable[[Writer], None]) -> Callable[[Writer], None]:
    """Take up a pattern."""
    PLANTS.append(function)
    return function


@family(14)
def _plant(w: Writer) -> None:
    w.random.choice(PLANTS)(w)


def _row(w: Writer, x: Value, *, odds: float = 0.85) -> Value:
    """A constant row of the last dimension, or something that is nearly one."""
    w.require(x.rank > 0 and not x.varies[-1])
    n = x.shape[-1]
    wrong: list[tuple[int, ...]] = [(1,), (), (1, n), (1,) * x.rank + (n,)]
    if x.rank > 1 and not x.varies[-2]:
        wrong += [(x.shape[-2], 1), (x.shape[-2], n)]
    return w.noise(w.usual((n,), *wrong, odds=odds), x.dtype)


def _number(w: Writer, right: float, x: Value, *wrong: float) -> Value:
    """A constant in one of its shapes; now and then another number."""
    shape: tuple[int, ...] = w.usual((), (1,), (1,) * x.rank, (1,) * (x.rank + 1), odds=0.7)
    return w.constant(np.full(shape, w.usual(right, *wrong, right * 1.01, -right, odds=0.9)), x.dtype)


def _features(w: Writer, dtypes: Sequence[int] = (F32, F32, F32, F64, F16)) -> Value:
    return w.pick(dtypes, range(1, 5), lambda one: not one.varies[-1] and one.shape[-1] > 0)


# -- activations ------------------------------------------------------------------------------------------------------


@plant
def _gelu(w: Writer) -> None:
    x = _features(w) if w.chance(0.7) else w.pick(FLOATS)
    if w.chance(0.3) and x.rank:
        w.require(not x.varies[-1])
        x = w.either("Add", x, _row(w, x))
    if w.chance(0.5):
        a = w.elementwise("Div", x, _number(w, math.sqrt(2), x, 2.0), show=False)
    else:
        a = w.either("Mul", x, _number(w, math.sqrt(0.5), x, 0.5), show=False)
    e = w.add(w.usual("Erf", "Tanh", odds=0.95), [a], show=False)
    p = w.either(w.usual("Add", "Sub", odds=0.95), e, _number(w, 1.0, x), show=False)
    factor = x if w.chance(0.93) else w.like(x)
    order = w.random.randrange(4)
    if order == 0:
        y = w.either("Mul", w.either("Mul", factor, p, show=False), _number(w, 0.5, x))
    elif order == 1:
        y = w.either("Mul", w.either("Mul", factor, _number(w, 0.5, x), show=False), p)
    elif order == 2:
        y = w.either("Mul", w.either("Mul", p, _number(w, 0.5, x), show=False), factor)
    else:
        y = w.elementwise("Div", w.either("Mul", factor, p, show=False), _number(w, 2.0, x))
    w.maybe_show(a, e, p, y)


@plant
def _fast_gelu(w: Writer) -> None:
    x = _features(w) if w.chance(0.7) else w.pick(FLOATS)
    if w.chance(0.3) and x.rank:
        w.require(not x.varies[-1])
        x = w.either("Add", x, _row(w, x))
    if w.chance(0.6):
        exponent = _number(w, 3.0, x, 2.0)
        cube = w.elementwise("Pow", x, exponent, show=False)
    else:
        cube = w.either("Mul", w.elementwise("Mul", x, x, show=False), x, show=False)
    inner = w.either("Add", x, w.either("Mul", cube, _number(w, 0.044715, x), show=False), show=False)
    t = w.add("Tanh", [w.either("Mul", inner, _number(w, 0.7978845608, x), show=False)], show=False)
    p = w.either("Add", t, _number(w, 1.0, x), show=False)
    half = w.either("Mul", x, _number(w, 0.5, x), show=False)
    y = w.either("Mul", half, p)
    w.maybe_show(cube, inner, t, p, y)


@plant
def _quick_gelu(w: Writer) -> None:
    x = w.pick(FLOATS)
    a = w.either("Mul", x, _number(w, w.one(1.702, 1.0, 0.5), x), show=False) if w.chance(0.8) else x
    s = w.add(w.usual("Sigmoid", "Tanh"), [a], show=False)
    w.either("Mul", x if w.chance(0.93) else w.like(x), s)
    w.maybe_show(a, s)


@plant
def _composed_activation(w: Writer) -> None:
    """Hard swish, mish, softplus, leaky relu and the like, spelled out."""
    x = w.pick((F32, F32, F64, F16))
    what = w.random.randrange(5)
    if what == 0:
        s = w.either("Add", x, _number(w, 3.0, x), show=False)
        c = w.add("Clip", [s, w.scalar(0, x, rank=0), w.scalar(w.usual(6, 5), x, rank=0)], show=False)
        y = w.either("Mul", x, c, show=False)
        w.elementwise("Div", y, _number(w, 6.0, x))
    elif what == 1:
        s = w.add("HardSigmoid", [x], show=False, alpha=w.usual(1 / 6, 0.2), beta=0.5)
        w.either("Mul", x, s)
    elif what == 2:
        s = w.add("Tanh", [w.add("Softplus", [x], show=False)], show=False)
        w.either("Mul", x, s)
    elif what == 3:
        s = w.either("Add", w.add("Exp", [x], show=False), _number(w, 1.0, x), show=False)
        w.add("Log", [s])
    else:
        s = w.either("Mul", x, _number(w, 0.1, x), show=False)
        w.add("Max", [x, s], np.broadcast_shapes(x.shape, s.shape), None if x.rank < s.rank else x.varies) if (
            x.rank >= s.rank
        ) else None


# -- normalizations ---------------------------------------------------------------------------------------------------


def _square(w: Writer, x: Value) -> Value:
    if w.chance(0.3):
        return w.elementwise("Mul", x, x if w.chance(0.95) else w.like(x), show=False)
    return w.elementwise("Pow", x, _number(w, 2.0, x, 3.0, 1.0), show=False)


def _divided(w: Writer, x: Value, variance: Value, epsilon: float) -> Value:
    """The last steps: x / Sqrt(variance + ε) in its spellings."""
    if w.chance(0.95):
        variance = w.either("Add", variance, _number(w, epsilon, variance, 1.0), show=False)
    root = w.add(w.usual("Sqrt", "Exp", odds=0.96), [variance], show=False)
    if w.chance(0.6):
        return w.elementwise("Div", x, root, show=w.chance(0.1))
    if w.chance(0.5):
        inverse = w.add("Reciprocal", [root], show=False)
    else:
        inverse = w.elementwise("Div", _number(w, 1.0, root), root, show=False)
    return w.either("Mul", x, inverse, show=w.chance(0.1))


def _norm_axes(w: Writer, x: Value) -> list[int]:
    axes = [-1]
    if x.rank > 1 and not x.varies[-2] and w.chance(0.15):
        axes = w.one([-2, -1], [-1, -2], [-2])
    if w.chance(0.3):
        axes = [axis + x.rank for axis in axes]
    if w.chance(0.05):
        axes = [0]
    return axes


@plant
def _layer_norm(w: Writer) -> None:
    x = _features(w)
    if w.chance(0.3):
        x = w.either("Add", x, w.usual(w.like(x), _row(w, x)), show=w.chance(0.5))
        if w.chance(0.2):
            x = w.either("Add", x, _row(w, x), show=w.chance(0.5))
    source = x
    if x.dtype == F16 or w.chance(0.1):
        x = w.add("Cast", [x], dtype=F32, to=F32, show=False)
    axes = _norm_axes(w, x)
    keep = w.chance(0.97)
    mean = reduce(w, w.usual("ReduceMean", "ReduceMax", odds=0.97), x, axes, keep=True, show=False)
    centred = w.elementwise("Sub", x, mean, show=False)
    if w.chance(0.03):
        centred = w.elementwise("Sub", mean, x, show=False)
    other = centred if w.chance(0.9) else w.elementwise("Sub", x, mean, show=False)
    variance = reduce(
        w, "ReduceMean", _square(w, other), axes if w.chance(0.95) else [-1], keep=keep or x.rank == 1, show=False
    )
    y = _divided(w, centred, variance, w.one(1e-5, 1e-6, 1e-12))
    if source.dtype != y.dtype and w.chance(0.5):
        y = w.add("Cast", [y], dtype=source.dtype, to=source.dtype, show=False)
    if w.chance(0.9):
        y = w.either("Mul", y, _row(w, y, odds=0.92), show=w.chance(0.1))
        if w.chance(0.85):
            w.require(not y.varies[-1])
            y = w.either("Add", y, _row(w, y, odds=0.92), show=w.chance(0.1))
    w.show(y)
    w.maybe_show(mean, centred, variance)


@plant
def _rms_norm(w: Writer) -> None:
    x = _features(w)
    if w.chance(0.3):
        x = w.either("Add", x, w.like(x), show=w.chance(0.5))
    source = x
    if x.dtype == F16 or w.chance(0.1):
        x = w.add("Cast", [x], dtype=F32, to=F32, show=False)
    variance = reduce(w, w.usual("ReduceMean", "ReduceSum", odds=0.96), _square(w, x), _norm_axes(w, x), show=False)
    y = _divided(w, x, variance, w.one(1e-5, 1e-6))
    if source.dtype != y.dtype and w.chance(0.7):
        y = w.add("Cast", [y], dtype=source.dtype, to=source.dtype, show=False)
    if w.chance(0.85):
        y = w.either("Mul", y, _row(w, y, odds=0.92), show=False)
    w.show(y)
    w.maybe_show(variance)


@plant
def _skip_norm(w: Writer) -> None:
    x = w.pick((F32, F32, F64), (2, 3), lambda one: not one.varies[-1] and one.size > 0)
    y = w.either("Add", x, w.usual(w.like(x), _row(w, x)), show=w.chance(0.4))
    w.require(y.shape == x.shape)
    if w.chance(0.3):
        y = w.either("Add", y, w.usual(_row(w, x), w.like(x)), show=w.chance(0.2))
        w.require(y.shape == x.shape)
    row = y.shape[-1:]
    if w.opset >= 23 and w.chance(0.4):
        w.add("RMSNormalization", [y, w.noise(row, y.dtype)], axis=w.usual(-1, 0))
    elif w.opset >= 17:
        axis = w.usual(-1, y.rank - 1)
        bias = w.noise(row, y.dtype) if w.chance(0.7) else None
        w.add("LayerNormalization", [y, w.noise(row, y.dtype), bias], axis=axis)


@plant
def _group_norm(w: Writer) -> None:
    """Reshape, InstanceNormalization, Reshape, Mul, Add."""
    x = image(w)
    w.require(x.dtype == F32 and x.shape[1] % 2 == 0 and x.static)
    groups, channels = 2, x.shape[1]
    first = w.add(
        "Reshape", [x, w.ints(0, groups, -1)], (x.shape[0], groups, x.size // (x.shape[0] * groups)), show=False
    )
    ones, zeros = (
        w.constant(np.full(groups, w.usual(1.0, 2.0)), F32),
        w.constant(np.full(groups, w.usual(0.0, 1.0)), F32),
    )
    y = w.add("InstanceNormalization", [first, ones, zeros], show=False)
    y = w.add("Reshape", [y, w.shape_of(x) if w.chance(0.5) else w.ints(*x.shape)], x.shape, show=False)
    y = w.either("Mul", y, w.noise((channels, 1, 1), F32), show=False)
    w.either("Add", y, w.noise((channels, 1, 1), F32))


# -- products ---------------------------------------------------------------------------------------------------------


@plant
def _matmul_add(w: Writer) -> None:
    x = w.pick((F32, F32, F64, I32), (1, 2, 2, 3), lambda one: not one.varies[-1] and one.shape[-1] > 0)
    k, n = x.shape[-1], w.one(1, 2, 4)
    weight = w.noise((k, n), x.dtype, 0.5)
    y = w.add("MatMul", [x, weight], (*x.shape[:-1], n), (*x.varies[:-1], False), show=w.chance(0.1))
    rows = () if x.rank < 2 or y.varies[0] else (y.shape[0],)
    shapes: list[tuple[int, ...]] = [(), (1,), (1, n), (1, 1, n), (2, 1, n), (3, n)]
    if rows and x.rank == 2:
        shapes += [(*rows, 1), (*rows, n), (1, *rows, n)]
    bias = w.noise(w.usual((n,), *shapes, odds=0.5), x.dtype)
    w.require(_fits(y, bias))
    y = w.either("Add", y, bias)
    if w.chance(0.3):
        w.add("Relu", [y])


def _fits(*values: Value) -> bool:
    try:
        np.broadcast_shapes(*(value.shape for value in values))
    except ValueError:
        return False
    return True


@plant
def _matmul_bn(w: Writer) -> None:
    x = w.pick((F32, F64), (2, 3), lambda one: not one.varies[-1] and one.size > 0)
    n = w.one(2, 3, 4)
    y = w.add(
        "MatMul", [x, w.noise((x.shape[-1], n), x.dtype, 0.5)], (*x.shape[:-1], n), (*x.varies[:-1], False), show=False
    )
    for _ in range(w.one(0, 1, 1, 2)):
        if w.chance(0.6):
            y = transpose(w, y, w.random.sample(range(y.rank), y.rank), show=False)
        else:
            y = reshape(w, y, show=False)
    batch_normalization(w, y)


@plant
def _double_matmul(w: Writer) -> None:
    """Constants that could be multiplied with one another."""
    x = _features(w, (F32, F32, F64))
    a, b = w.noise((x.shape[-1], w.one(1, 3)), x.dtype, 0.5), w.one(2, 4)
    y = w.add("MatMul", [x, a], (*x.shape[:-1], a.shape[1]), (*x.varies[:-1], False), show=w.chance(0.1))
    if w.chance(0.4):
        y = w.either("Mul", y, w.noise(w.usual((), (a.shape[1],)), x.dtype), show=w.chance(0.1))
    w.add("MatMul", [y, w.noise((a.shape[1], b), x.dtype, 0.5)], (*x.shape[:-1], b), (*x.varies[:-1], False))


@plant
def _siblings(w: Writer) -> None:
    """Several products of one input, as of queries, keys and values."""
    x = _features(w, (F32, F32, F64))
    made = []
    for _ in range(w.one(2, 3)):
        n = w.usual(4, 2)
        y = w.add("MatMul", [x, w.noise((x.shape[-1], n), x.dtype, 0.5)], (*x.shape[:-1], n), (*x.varies[:-1], False))
        if w.chance(0.5):
            y = w.either("Add", y, w.noise((n,), x.dtype))
        made.append(y)
    if w.chance(0.5):
        try:
            w.either("Mul", made[0], made[1])
        except ValueError:
            return


@plant
def _attention(w: Writer) -> None:  # noqa: PLR0915 - one pattern, spelling after spelling
    """Softmax(Q·Kᵀ·scale + mask)·V in heads, in its spellings."""
    x = w.pick((F32, F32, F32, F64), (3,), lambda one: not one.varies[-1] and one.size > 0)
    heads, size = w.one(1, 2), w.one(2, 4)
    hidden = heads * size
    batch, length = x.shape[0], x.shape[1]
    other = w.usual(x, w.like(x))

    def projected(source: Value, perm: Sequence[int]) -> Value:
        y = w.add("MatMul", [source, w.noise((x.shape[-1], hidden), x.dtype, 0.5)], (batch, length, hidden),
                  (*x.varies[:2], False), show=False)  # fmt: skip
        if w.chance(0.6):
            y = w.either("Add", y, w.noise((hidden,), x.dtype), show=w.chance(0.04))
        if w.chance(0.4) or all(x.varies[:2]):
            target = w.add(
                "Concat", [w.dim(source, 0), w.dim(source, 1), w.ints(heads, size)], (4,), show=False, axis=0
            )
        else:
            target = w.ints(0, 0, heads, size)
        y = w.add("Reshape", [y, target], (batch, length, heads, size), (*x.varies[:2], False, False), show=False)
        return transpose(w, y, perm, show=w.chance(0.04))

    q, v = projected(x, (0, 2, 1, 3)), projected(other, (0, 2, 1, 3))
    if w.chance(0.6):
        k = projected(other, (0, 2, 3, 1))
    else:
        k = transpose(w, projected(other, (0, 2, 1, 3)), (0, 1, 3, 2), show=False)
    scale = 1 / math.sqrt(size)
    where = w.random.randrange(4)
    if where == 1:
        q = w.either("Mul", q, _number(w, scale, q), show=False)
    elif where == 2:
        q = w.either("Mul", q, _number(w, scale**0.5, q), show=False)
        k = w.either("Mul", k, _number(w, scale**0.5, k), show=False)
    scores = w.add("MatMul", [q, k], (batch, heads, length, length), (x.varies[0], False, x.varies[1], x.varies[1]),
                   show=False)  # fmt: skip
    if where == 0:
        scores = w.elementwise("Div", scores, _number(w, 1 / scale, scores), show=False)
    if w.chance(0.5):
        mask_dims: list[tuple[int, ...]] = [(1, 1, 1, 1), (1, heads, 1, 1)]
        if not x.varies[1]:
            mask_dims += [(1, 1, length, length), (length, length), (1, 1, 1, length)]
        mask = w.noise(w.one(*mask_dims), x.dtype)
        if w.chance(0.3):
            allowed = w.elementwise("Greater", mask, w.scalar(0.0, mask, rank=0), dtype=BOOL, show=False)
            shape = np.broadcast_shapes(allowed.shape, scores.shape)
            low = w.scalar(w.one(-1e4, -np.inf, -3.4e38), scores, rank=0)
            scores = w.add("Where", [allowed, scores, low], shape, scores.varies, dtype=x.dtype, show=False)
        else:
            scores = w.either("Add", scores, mask, show=False)
    p = w.add("Softmax", [scores], show=w.chance(0.05), axis=w.usual(-1, 3, 2, odds=0.7))
    if w.chance(0.15):
        nan = w.add("IsNaN", [p], dtype=BOOL, show=False)
        p = w.add("Where", [nan, w.scalar(0.0, p, rank=0), p], p.shape, p.varies, dtype=p.dtype, show=False)
    y = w.add("MatMul", [p, v], q.shape, q.varies, show=False)
    y = transpose(w, y, w.usual((0, 2, 1, 3), (0, 1, 2, 3), odds=0.95), show=False)
    if not any(y.varies[:2]) or w.chance(0.5):
        target = w.add("Concat", [w.dim(y, 0), w.dim(y, 1), w.ints(y.shape[2] * y.shape[3])], (3,), show=False, axis=0)
    else:
        target = w.ints(0, 0, y.shape[2] * y.shape[3])
    y = w.add("Reshape", [y, target], (*y.shape[:2], y.shape[2] * y.shape[3]), (*y.varies[:2], False))
    if w.chance(0.6):
        w.add("MatMul", [y, w.noise((y.shape[-1], 4), x.dtype, 0.5)], (*y.shape[:2], 4), y.varies)


@plant
def _rotary(w: Writer) -> None:
    x = w.pick((F32, F32, F64), (3, 4), lambda one: not one.varies[-1] and one.shape[-1] % 2 == 0 and one.size > 0)
    n = x.shape[-1]
    half = n // 2
    if w.chance(0.5):
        cut = w.usual(half, 1)
        a = w.add("Slice", [x, w.ints(0), w.ints(cut), w.ints(-1)], (*x.shape[:-1], cut), x.varies, show=False)
        b = w.add(
            "Slice", [x, w.ints(cut), w.ints(2**63 - 1), w.ints(-1)], (*x.shape[:-1], n - cut), x.varies, show=False
        )
    else:
        results = [(x.dtype, (*x.shape[:-1], half), x.varies)] * 2
        a, b = w.node("Split", [x, w.ints(half, half)], results, axis=-1)
    parts = [w.add("Neg", [b], show=False), a]
    turned = w.add("Concat", parts if w.chance(0.95) else parts[::-1], x.shape, x.varies, show=False, axis=-1)
    length = 1 if x.varies[-2] else x.shape[-2]
    cos, sin = (w.noise((length, n), x.dtype) for _ in range(2))
    w.either("Add", w.either("Mul", x, cos, show=False), w.either("Mul", turned, sin, show=False))


@plant
def _activated_product(w: Writer) -> None:
    """What becomes FusedGemm and FusedMatMul."""
    x = w.pick((F32, F32, F64), range(2, 5), lambda one: not one.varies[-1] and one.size > 0)
    k, n = x.shape[-1], w.one(1, 3)
    weight = w.noise((n, k), x.dtype, 0.5)
    b = transpose(w, weight, (1, 0), show=False) if w.chance(0.6) else w.noise((k, n), x.dtype, 0.5)
    a = x
    if w.chance(0.3):
        a = w.either(w.usual("Mul", "Div"), a, w.scalar(0.5, a), show=w.chance(0.1))
        w.require(a.shape == x.shape)
    y = w.add("MatMul", [a, b], (*x.shape[:-1], n), (*x.varies[:-1], False), show=w.chance(0.1))
    if w.chance(0.4):
        y = w.either("Mul", y, w.scalar(w.one(0.5, 2.0), y), show=w.chance(0.1))
    w.add(w.one("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Softplus", "Elu", "Clip"), [y])


# -- arithmetic -------------------------------------------------------------------------------------------------------


@plant
def _div_mul(w: Writer) -> None:
    x = w.pick((F32, F32, F64, F16, I64, I32))
    if x.dtype not in FLOATS:
        x = w.either("Add", w.add("Abs", [x], show=False), w.scalar(1, x, rank=0), show=False)
    inverse = w.elementwise("Div", _number(w, 1, x, 2), x, show=False)
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
        w.elementwise("Pow", x, _number(w, w.one(2, 3, 0.5, 1, 0, -1, -0.5), x))
    elif what == 1:
        w.elementwise("Div", _number(w, 1, x), w.add("Sqrt", [x], show=False))
    elif what == 2:
        w.add("Reciprocal", [w.add("Sqrt", [w.add("Abs", [x], show=False)], show=False)])
    else:
        w.add("Log", [w.add("Exp", [x], show=False)])


@plant
def _noop_arithmetic(w: Writer) -> None:
    x = w.pick((F32, F32, F64, F16, I64, I32))
    op, number = w.one(("Add", 0.0), ("Add", -0.0), ("Sub", 0.0), ("Sub", -0.0), ("Mul", 1.0), ("Div", 1.0))
    neutral = _number(w, number, x, 0.0, 1.0)
    if w.chance(0.1) and x.rank and not x.varies[-1]:
        neutral = w.constant(np.full(x.shape[-1:], number), x.dtype)
    if w.chance(0.1):
        neutral = w.constant(np.full(w.one((0,), (2,), (1, 1)), number), x.dtype)
        w.require(_fits(x, neutral))
    w.elementwise(op, x, neutral) if op in ("Sub", "Div") and w.chance(0.9) else w.either(op, x, neutral)


# -- shapes and movement ----------------------------------------------------------------------------------------------


@plant
def _tiled_axis(w: Writer) -> None:
    """Slices or Gathers that cover an axis, and a Concat of them."""
    x = w.pick(
        NUMBERS, range(1, 5), lambda one: any(not v and d > 1 for d, v in zip(one.shape, one.varies, strict=True))
    )
    axis = w.one(*(i for i, (d, v) in enumerate(zip(x.shape, x.varies, strict=True)) if not v and d > 1))
    size = x.shape[axis]
    cut = w.usual(size // 2, 1, size - 1)
    ranges = [(0, cut), (w.usual(cut, 0), w.usual(size, 2**63 - 1, size - 1))]
    parts = []
    use_gather = w.chance(0.3)
    for start, end in ranges:
        count = len(range(size)[start:end])
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        if use_gather:
            picked = w.constant(np.arange(size)[start:end], I64)
            parts.append(w.add("Gather", [x, picked], shape, x.varies, axis=axis))
        else:
            low = start - w.one(0, size) if start else 0
            at = axis - w.one(0, x.rank)
            parts.append(w.add("Slice", [x, w.ints(low), w.ints(end), w.ints(at)], shape, x.varies))
    if w.chance(0.6):
        total = sum(part.shape[axis] for part in parts)
        shape = (*x.shape[:axis], total, *x.shape[axis + 1 :])
        w.add("Concat", parts if w.chance(0.8) else parts[::-1], shape, x.varies, axis=axis)


@plant
def _focus(w: Writer) -> None:
    """YOLO's focus: strided slices and a Concat."""
    x = image(w)
    w.require(x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0 and not any(x.varies[2:]))
    parts = []
    for j, i in w.one(((0, 0), (1, 0), (0, 1), (1, 1)), ((0, 0), (0, 1), (1, 0), (1, 1))):
        y = x
        for axis, start in ((2, i), (3, j)):
            halved = [dim // 2 if at == axis else dim for at, dim in enumerate(y.shape)]
            given = [w.ints(start), w.ints(2**31 - 1), w.ints(axis), w.ints(2)]
            y = w.add("Slice", [y, *given], halved, y.varies, show=w.chance(0.03))
        parts.append(y)
    shape = (x.shape[0], 4 * x.shape[1], x.shape[2] // 2, x.shape[3] // 2)
    w.add("Concat", parts, shape, x.varies, axis=1)


@plant
def _slices_of_concat(w: Writer) -> None:
    x = w.pick(NUMBERS, range(1, 5), lambda one: not one.varies[-1])
    y = w.like(x)
    both = w.add("Concat", [x, y], (*x.shape[:-1], 2 * x.shape[-1]), x.varies, axis=-1)
    n = x.shape[-1]
    start, end = w.usual((0, n), (n, 2 * n), (0, 2 * n), (1, n), odds=0.4)
    count = len(range(2 * n)[start:end])
    w.add("Slice", [both, w.ints(start), w.ints(end), w.ints(-1)], (*x.shape[:-1], count), x.varies)


@plant
def _shape_of_the_same(w: Writer) -> None:
    """A Reshape or Expand to a shape that is computed of another value of the same shape."""
    x = w.pick(NUMBERS, range(1, 5))
    other = w.like(x)
    flat = w.add("Reshape", [x, w.ints(-1)], (x.size,), (not x.static,), show=False) if x.size else x
    what = w.random.randrange(3)
    if what == 0:
        w.add("Reshape", [flat, w.whole_shape(other)], x.shape, x.varies)
    elif what == 1:
        w.add("Expand", [x, w.whole_shape(other)])
    else:
        rows = w.dim(other, 0)
        w.add("Slice", [x, w.ints(0), rows, w.ints(0)])


@plant
def _reshaped_there_and_back(w: Writer) -> None:
    x = w.pick(NUMBERS, range(1, 5))
    y = reshape(w, x, show=w.chance(0.2))
    for _ in range(w.one(0, 1, 2)):
        y = chain(w, y, show=False)
    w.add("Reshape", [y, w.whole_shape(x)], x.shape, x.varies)


@plant
def _arithmetic_of_shapes(w: Writer) -> None:
    x = w.pick(NUMBERS, range(1, 5))
    a, b = w.dim(x, 0), w.dim(x, x.rank - 1)
    y = w.either("Mul", a, w.ints(w.one(1, 2)), show=False)
    y = w.elementwise(w.one("Add", "Sub", "Mul"), y, b)
    if w.chance(0.5):
        y = w.elementwise("Div", y, w.ints(w.one(1, 2, 3)))
    if w.chance(0.5):
        y = w.add("Cast", [y], dtype=F32, to=F32, show=False)
        y = w.add(w.one("Floor", "Ceil"), [y], show=False)
        y = w.add("Cast", [y], dtype=I64, to=I64)
    if w.chance(0.4):
        y = w.elementwise("Equal", y, w.ints(w.one(-1, 0, 4)), dtype=BOOL, show=False)
        w.add("Where", [y, w.ints(1), w.ints(2)], (1,), dtype=I64)


@plant
def _pad_conv(w: Writer) -> None:
    x = image(w)
    spatial = [w.one(0, 1, 2) for _ in range(4)]
    first = [0, w.usual(0, 1, odds=0.95)]
    amounts = [*first, *spatial[:2], 0, 0, *spatial[2:]]
    y = pad(w, x, amounts, w.usual(0.0, 1.0), w.usual("constant", "edge", odds=0.9))
    if w.chance(0.6):
        convolution(w, y)
    else:
        extra: Attributes = {"count_include_pad": 1} if w.chance(0.5) else {}
        op = w.usual("AveragePool", "MaxPool", odds=0.6)
        shape = (*y.shape[:2], *(dim - 1 for dim in y.shape[2:]))
        w.add(op, [y], shape, y.varies, kernel_shape=[2, 2], **(extra if op == "AveragePool" else {}))


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
