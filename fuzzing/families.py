"""The op families of the generator: each writes one op, or a few, on values that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from onnx import helper

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
    STRING,
    U8,
    Attributes,
    Value,
    Writer,
)

Family = Callable[[Writer], object]

FAMILIES: Final[list[tuple[Family, float]]] = []
"""What can be written, and how often."""


def family(weight: float = 1.0) -> Callable[[Family], Family]:
    """Take up a family of ops."""

    def register(function: Family) -> Family:
        FAMILIES.append((function, weight))
        return function

    return register


def step(writer: Writer) -> None:
    """Write one of the families; any that does not fit leaves at most dead nodes."""
    functions, weights = zip(*FAMILIES, strict=True)
    writer.random.choices(functions, weights)[0](writer)


# -- elementwise ------------------------------------------------------------------------------------------------------

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
        c = w.pick((BOOL,), where=lambda one: _broadcasts(one, x, y))
    else:
        c = w.elementwise("Greater", x, y, dtype=BOOL) if x.dtype != BOOL else x
    if w.chance(0.5):
        c = w.add("Not", [c], show=w.chance(0.3))
    w.require(_broadcasts(c, x, y))
    shape = np.broadcast_shapes(c.shape, x.shape, y.shape)
    varies = [any(one.varies[-i] for one in (c, x, y) if one.rank >= i) for i in range(len(shape), 0, -1)]
    w.add("Where", [c, x, y] if w.chance(0.5) else [c, y, x], shape, varies, dtype=x.dtype)


def _broadcasts(*values: Value) -> bool:
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


# -- reductions and normalizations ------------------------------------------------------------------------------------


def reduced(x: Value, axes: Sequence[int], keep: bool) -> tuple[list[int], list[bool]]:
    """The shape that a reduction leaves, and what of it varies."""
    gone = {axis % x.rank for axis in axes} if x.rank else set()
    shape = [1 if i in gone else dim for i, dim in enumerate(x.shape) if keep or i not in gone]
    varies = [i not in gone and vary for i, vary in enumerate(x.varies) if keep or i not in gone]
    return shape, varies


def reduce(w: Writer, op: str, x: Value, axes: Sequence[int] | None, *, keep: bool = True, show: bool = True) -> Value:
    """Write a reduction in the spelling of the opset; all axes if None."""
    shape, varies = reduced(x, range(x.rank) if axes is None else axes, keep)
    attributes: Attributes = {} if keep and w.chance(0.5) else {"keepdims": int(keep)}
    if axes is None:
        return w.add(op, [x], shape, varies, show=show, **attributes)
    if w.opset >= (13 if op == "ReduceSum" else 18):
        return w.add(op, [x, w.ints(*axes)], shape, varies, show=show, **attributes)
    return w.add(op, [x], shape, varies, show=show, axes=list(axes), **attributes)


def some_axes(w: Writer, x: Value) -> list[int]:
    """One or two axes, counted from either end."""
    w.require(x.rank > 0)
    axes = w.random.sample(range(x.rank), w.one(1, 1, min(2, x.rank)))
    return [axis - w.one(0, x.rank) for axis in axes]


@family(3)
def _reduce(w: Writer) -> None:
    x = w.pick((F32, F32, F64, F16, I32, I64), range(1, 6))
    axes = None if w.chance(0.15) else some_axes(w, x)
    ops = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"]
    if x.dtype in FLOATS:
        ops += ["ReduceL2", "ReduceL1", "ReduceSumSquare", "ReduceLogSumExp"]
    op = w.one(*ops)
    w.require(x.size > 0)
    if w.chance(0.1):
        x = w.add("Unsqueeze", [x, w.ints(0)], (1, *x.shape), (False, *x.varies), show=False)
        axes = [0]
    y = reduce(w, op, x, axes, keep=w.chance(0.6))
    if w.chance(0.2) and y.rank:
        reduce(w, w.usual(op, "ReduceMax"), y, some_axes(w, y), keep=w.chance(0.5))


@family(0.5)
def _no_axes(w: Writer) -> None:
    x = w.pick(FLOATS, range(1, 5))
    if w.opset >= 18 or w.chance(0.5):
        op = "ReduceSum" if w.opset < 18 else w.one("ReduceSum", "ReduceMean")
        noop = w.chance(0.7)
        shape, varies = (x.shape, x.varies) if noop else reduced(x, range(x.rank), True)
        w.require(x.size > 0)
        axes = w.ints() if w.chance(0.5) else None
        w.add(op, [x, axes], shape, varies, noop_with_empty_axes=int(noop))


@family(0.7)
def _arg(w: Writer) -> None:
    x = w.pick((F32, F64, I32), range(1, 5), lambda one: one.size > 0)
    axis, keep = w.random.randrange(x.rank), w.chance(0.5)
    shape, varies = reduced(x, [axis], keep)
    w.add(w.one("ArgMax", "ArgMin"), [x], shape, varies, dtype=I64, axis=axis - w.one(0, x.rank), keepdims=int(keep))


@family(0.5)
def _top(w: Writer) -> None:
    x = w.pick((F32, F64, I64), range(1, 5), lambda one: one.shape[-1] > 0 and not one.varies[-1])
    k = w.random.randint(1, x.shape[-1])
    results = [(dtype, (*x.shape[:-1], k), x.varies) for dtype in (x.dtype, I64)]
    w.show(*w.node("TopK", [x, w.ints(k)], results, axis=-1))


@family(0.5)
def _cumulate(w: Writer) -> None:
    x = w.pick((F32, F64, I64), range(1, 5))
    axis = w.constant(np.int64(w.random.randrange(x.rank)))
    w.add("CumSum", [x, axis], exclusive=w.one(0, 1), reverse=w.one(0, 1))


@family(2)
def _softmax(w: Writer) -> None:
    x = w.pick((F32, F32, F64, F16), range(1, 6))
    axis = w.usual(-1, w.random.randrange(x.rank))
    w.add(w.usual("Softmax", "LogSoftmax", "Hardmax"), [x], axis=axis)


@family(1.5)
def _normalize(w: Writer) -> None:
    kind = w.one("layer", "layer", "instance", "group", "lp", "lrn", "mvn", "rms", "batch")
    if kind == "layer" and w.opset >= 17:
        x = w.pick((F32, F32, F64), range(1, 5), lambda one: not one.varies[-1])
        axis = x.rank - 1
        if x.rank > 1 and not x.varies[-2] and w.chance(0.2):
            axis -= 1
        shape = x.shape[axis:]
        w.require(x.size > 0)
        bias = w.noise(shape, x.dtype) if w.chance(0.7) else None
        w.add("LayerNormalization", [x, w.noise(shape, x.dtype), bias], axis=axis - w.one(0, x.rank), epsilon=1e-5)
    elif kind == "rms" and w.opset >= 23:
        x = w.pick((F32, F64), range(1, 5), lambda one: not one.varies[-1] and one.size > 0)
        w.add("RMSNormalization", [x, w.noise(x.shape[-1:], x.dtype)], axis=-1)
    elif kind == "lp":
        x = w.pick((F32, F64), range(1, 5), lambda one: one.size > 0)
        w.add("LpNormalization", [x], axis=w.random.randrange(x.rank), p=w.one(1, 2))
    elif kind == "mvn":
        x = w.pick((F32,), (4,), lambda one: one.size > 0)
        w.add("MeanVarianceNormalization", [x])
    elif kind == "lrn":
        x = w.pick((F32,), (4,), lambda one: one.size > 0)
        w.add("LRN", [x], size=3)
    elif kind in ("instance", "group"):
        x = w.pick((F32,), (3, 4), lambda one: one.size > 0 and not one.varies[1])
        channels = x.shape[1]
        if kind == "instance":
            w.add("InstanceNormalization", [x, w.noise((channels,), F32), w.noise((channels,), F32)])
        elif w.opset >= 21:
            groups = w.one(1, *(g for g in (2, 3) if channels % g == 0))
            w.add("GroupNormalization", [x, w.noise((channels,), F32), w.noise((channels,), F32)], num_groups=groups)
    else:
        batch_normalization(w, w.pick((F32, F32, F64), range(2, 5), lambda one: not one.varies[1]))


def batch_normalization(w: Writer, x: Value, *, show: bool = True) -> Value:
    """Write a BatchNormalization, nearly always by constants."""
    w.require(x.rank >= 2 and not x.varies[1])
    n = x.shape[1]
    scale, bias, mean = (w.noise((n,), x.dtype) for _ in range(3))
    variance = w.constant(w.sheet.numbers.random(n) + 0.3, x.dtype)
    epsilon: Attributes = {} if w.chance(0.5) else {"epsilon": w.one(1e-3, 0.1)}
    return w.add("BatchNormalization", [x, scale, bias, mean, variance], show=show, **epsilon)


# -- products and convolutions ----------------------------------------------------------------------------------------


@family(3)
def _matmul(w: Writer) -> None:
    x = w.pick((F32, F32, F32, F64, I32), range(1, 5), lambda one: not one.varies[-1] and one.shape[-1] > 0)
    k, n = x.shape[-1], w.random.randint(1, 5)
    stack = [dim if not vary and w.chance(0.5) else 1 for dim, vary in zip(x.shape, x.varies, strict=True)][:-2]
    weight = w.noise((*(stack if w.chance(0.3) else ()), k, n), x.dtype, 0.5)
    if w.chance(0.1):
        weight = w.noise((k,), x.dtype)
        w.add("MatMul", [x, weight], x.shape[:-1], x.varies[:-1])
        return
    if weight.rank > 2 and x.rank < 2:
        return
    y = w.add("MatMul", [x, weight], (*x.shape[:-1], n), (*x.varies[:-1], False))
    if w.chance(0.5):
        w.either("Add", y, w.noise(w.usual((n,), (1, n), (1,), (1,) * y.rank), x.dtype))


@family(1.5)
def _product(w: Writer) -> None:
    """Two values multiplied, one of them transposed first."""
    x = w.pick((F32, F64), range(2, 5), lambda one: one.size > 0)
    y = w.like(x)
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    turned = w.add("Transpose", [y], [y.shape[i] for i in perm], [y.varies[i] for i in perm], perm=perm)
    if w.chance(0.4):
        turned = w.either(w.usual("Mul", "Div"), turned, w.scalar(0.5, turned), show=False)
    shape = (*x.shape[:-1], x.shape[-2])
    y = w.add("MatMul", [x, turned], shape, (*x.varies[:-1], x.varies[-2]))
    if w.chance(0.3):
        w.add("Softmax", [y], axis=-1)


@family(2)
def _gemm(w: Writer) -> None:
    x = w.pick((F32, F32, F64), (2,), lambda one: one.size > 0)
    turn_a = int(w.chance(0.3))
    rows, inner = x.shape[::-1] if turn_a else x.shape
    varies_rows, varies_inner = x.varies[::-1] if turn_a else x.varies
    w.require(not varies_inner)
    n, turn_b = w.random.randint(1, 4), int(w.chance(0.4))
    a: Value = x
    if w.chance(0.3):
        a = w.add("Transpose", [x], x.shape[::-1], x.varies[::-1], perm=[1, 0], show=w.chance(0.1))
        turn_a = 1 - turn_a
    weight = w.noise((n, inner) if turn_b else (inner, n), x.dtype, 0.5)
    if w.chance(0.2):
        weight = w.add("Transpose", [weight], weight.shape[::-1], perm=[1, 0], show=False)
        turn_b = 1 - turn_b
    c = None if w.chance(0.4) else w.noise(w.one((n,), (1, n), (), (1,), (1, 1)), x.dtype)
    attributes: Attributes = {"alpha": w.one(1.0, 0.5, 2.0), "beta": w.one(1.0, 0.5, 0.0)} if w.chance(0.3) else {}
    y = w.add("Gemm", [a, weight, c], (rows, n), (varies_rows, False), transA=turn_a, transB=turn_b, **attributes)
    what = w.random.randrange(6)
    if what == 0:
        w.either(w.one("Add", "Sum"), y, w.noise(w.usual((n,), (1, n), (), (1, 1, n)), x.dtype))
    elif what == 1:
        w.add("Transpose", [y], y.shape[::-1], y.varies[::-1], perm=[1, 0])
    elif what == 2:
        chain(w, y)
    elif what == 3:
        batch_normalization(w, y)


def _conv_dims(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    return (size + before + after - (kernel - 1) * dilation - 1) // stride + 1


def convolution(w: Writer, x: Value, *, show: bool = True) -> Value:
    """Write a Conv by constant weights."""
    w.require(x.rank in (3, 4) and not x.varies[1] and x.shape[1] > 0 and x.dtype in (F32, F64))
    channels, spatial = x.shape[1], x.rank - 2
    groups = w.usual(1, *(g for g in (2, 3, 4, channels) if channels % g == 0), odds=0.7)
    out = groups * w.one(1, 2)
    kernel = [w.one(1, 1, 2, 3) for _ in range(spatial)]
    strides = [w.usual(1, 2) for _ in range(spatial)]
    dilations = [w.usual(1, 2, odds=0.9) for _ in range(spatial)]
    pads = [w.one(0, 0, 1) for _ in range(2 * spatial)]
    dims = [
        _conv_dims(x.shape[2 + i], kernel[i], strides[i], dilations[i], pads[i], pads[i + spatial])
        for i in range(spatial)
    ]
    w.require(min(dims) > 0)
    weight = w.noise((out, channels // groups, *kernel), x.dtype, 0.5)
    bias = w.noise((out,), x.dtype) if w.chance(0.5) else None
    attributes: Attributes = {"group": groups, "strides": strides, "dilations": dilations}
    attributes |= {"kernel_shape": kernel} if w.chance(0.7) else {}
    attributes |= {"pads": pads} if any(pads) or w.chance(0.3) else {}
    attributes = {name: item for name, item in attributes.items() if item != 1}
    varies = (x.varies[0], False, *x.varies[2:])
    return w.add("Conv", [x, weight, bias], (x.shape[0], out, *dims), varies, show=show, **attributes)


def _pool(w: Writer, x: Value) -> Value:
    w.require(x.rank == 4 and x.dtype in (F32, F64))
    op = w.one("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if op.startswith("Global"):
        w.require(x.size > 0 and x.dtype == F32)
        return w.add(op, [x], (*x.shape[:2], 1, 1), (*x.varies[:2], False, False))
    kernel, strides, pads = [w.one(1, 2, 2) for _ in "hw"], [w.one(1, 2) for _ in "hw"], [0, 0, 0, 0]
    if w.chance(0.3):
        pads = [w.one(0, kernel[i % 2] - 1) for i in range(4)]
    dims = [_conv_dims(x.shape[2 + i], kernel[i], strides[i], 1, pads[i], pads[i + 2]) for i in range(2)]
    w.require(min(dims) > 0 and x.size > 0)
    extra: Attributes = {"count_include_pad": w.one(0, 1)} if op == "AveragePool" and w.chance(0.6) else {}
    return w.add(op, [x], (*x.shape[:2], *dims), x.varies, kernel_shape=kernel, strides=strides, pads=pads, **extra)


def image(w: Writer) -> Value:
    """A value of rank 4 with fixed channels."""
    return w.pick((F32, F32, F32, F64), (4,), lambda one: not one.varies[1] and one.size > 0)


def pad(w: Writer, x: Value, amounts: Sequence[int], filling: float = 0.0, mode: str = "constant") -> Value:
    """Write a Pad in one of its spellings."""
    rank = x.rank
    shape = [dim + amounts[i] + amounts[rank + i] for i, dim in enumerate(x.shape)]
    w.require(min(shape, default=1) >= 0)
    value = w.scalar(filling, x, rank=0) if filling or w.chance(0.4) else None
    mode_given: Attributes = {"mode": mode} if mode != "constant" or w.chance(0.3) else {}
    if w.opset >= 18 and w.chance(0.3):
        axes = [i for i in range(rank) if amounts[i] or amounts[rank + i] or w.chance(0.3)]
        w.random.shuffle(axes)
        given = [amounts[i] for i in axes] + [amounts[rank + i] for i in axes]
        where = w.ints(*(axis - w.one(0, rank) for axis in axes))
        if w.chance(0.2):  # ORT reads constant axes as int64, computed ones as they are
            where = w.add("Cast", [where], dtype=I32, to=I32, show=False)
        return w.add("Pad", [x, w.ints(*given), value, where], shape, x.varies, **mode_given)
    return w.add("Pad", [x, w.ints(*amounts), value], shape, x.varies, **mode_given)


@family(1.5)
def _pad(w: Writer) -> None:
    x = w.pick((F32, F32, F64, I64, I32), range(1, 5), lambda one: one.size > 0)
    amounts = [w.one(0, 0, 1, 2, -1) for _ in range(2 * x.rank)]
    if w.chance(0.3):
        amounts = [0] * len(amounts)
    mode = w.usual("constant", "edge", "reflect", odds=0.7)
    if mode == "reflect":
        amounts = [max(0, min(amount, x.shape[i % x.rank] - 1)) for i, amount in enumerate(amounts)]
    pad(w, x, amounts, w.usual(0.0, 1.0), mode)


@family(4)
def _image(w: Writer) -> None:
    x = image(w)
    if w.chance(0.3):
        spatial = [w.one(0, 1, 1) for _ in range(4)]
        edges = [w.usual(0, 1, odds=0.95) for _ in range(4)]
        amounts = [*edges[:2], *spatial[:2], *edges[2:], *spatial[2:]]
        x = pad(w, x, amounts, w.usual(0.0, 1.0), w.usual("constant", "edge"))
    if w.chance(0.25):
        y = _pool(w, x)
    elif w.chance(0.15):
        channels, out, kernel, stride = x.shape[1], w.one(1, 2, 3), w.one(1, 2, 3), w.one(1, 2)
        groups = w.usual(1, *(g for g in (2, 3) if channels % g == 0))
        weight = w.noise((channels, out, kernel, kernel), x.dtype, 0.5)
        dims = [(dim - 1) * stride + kernel for dim in x.shape[2:]]
        bias = w.noise((out * groups,), x.dtype) if w.chance(0.5) else None
        shape, varies = (x.shape[0], out * groups, *dims), (x.varies[0], False, *x.varies[2:])
        y = w.add("ConvTranspose", [x, weight, bias], shape, varies, strides=[stride] * 2, group=groups)
    else:
        y = convolution(w, x, show=w.chance(0.15))
    _after_convolution(w, y)


def _after_convolution(w: Writer, y: Value) -> None:
    for _ in range(w.one(0, 1, 1, 2)):
        n = y.shape[1]
        what = w.one("bn", "bn", "add", "add", "mul", "mul", "act", "act", "residual")
        ones = (1,) * (y.rank - 2)
        if what == "bn":
            y = batch_normalization(w, y, show=w.chance(0.3))
        elif what in ("add", "mul"):
            op = w.one("Add", "Sub") if what == "add" else w.one("Mul", "Div")
            last = () if y.varies[-1] else y.shape[-1:]
            shape = w.usual((n, *ones), (1, n, *ones), (), (1,), last, (1, 1, n, *ones), odds=0.7)
            content = w.noise(shape, y.dtype) if w.chance(0.8) or not n else w.special(shape, y.dtype)
            a, b = (y, content) if w.chance(0.75) else (content, y)
            w.require(_broadcasts(a, b))
            y = w.elementwise(op, a, b, show=w.chance(0.3))
            w.require(y.rank > 2 and y.shape[1] == n)
        elif what == "act":
            op = w.one("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip", "Elu")
            if op == "Clip":
                y = w.add("Clip", [y, w.scalar(0, y, rank=0), w.scalar(w.one(6, 1), y, rank=0)])
            else:
                y = w.add(op, [y], show=w.chance(0.3))
        else:
            y = w.either("Add", y, w.like(y), show=w.chance(0.3))
    w.show(y)


@family(0.7)
def _resize(w: Writer) -> None:
    x = image(w)
    w.require(x.dtype == F32)
    factor = w.usual(2.0, 1.0, 0.5)
    mode = w.one("nearest", "nearest", "linear", "cubic")
    attributes: Attributes = {"coordinate_transformation_mode": w.one("asymmetric", "half_pixel", "align_corners")}
    if mode == "nearest":
        attributes["nearest_mode"] = w.one("floor", "round_prefer_floor")
    shape = (*x.shape[:2], *(int(dim * factor) for dim in x.shape[2:]))
    w.require(min(shape) > 0)
    if w.chance(0.3) and x.static:
        given = [x, None, None, w.ints(*shape)]
    else:
        given = [x, None, w.constant(np.array([1, 1, factor, factor], np.float32))]
    w.add("Resize", given, shape, x.varies, mode=mode, **attributes)


@family(0.7)
def _depth(w: Writer) -> None:
    x = image(w)
    if x.shape[1] % 4 == 0 and w.chance(0.5):
        shape = (x.shape[0], x.shape[1] // 4, *(dim * 2 for dim in x.shape[2:]))
        w.add("DepthToSpace", [x], shape, x.varies, blocksize=2, mode=w.one("DCR", "CRD"))
    elif all(dim % 2 == 0 for dim in x.shape[2:]) and not any(x.varies[2:]):
        shape = (x.shape[0], x.shape[1] * 4, *(dim // 2 for dim in x.shape[2:]))
        w.add("SpaceToDepth", [x], shape, x.varies, blocksize=2)


# -- movement ---------------------------------------------------------------------------------------------------------

ANY: Final = (*NUMBERS, BOOL)


@family(4)
def _transpose(w: Writer) -> None:
    x = w.pick(ANY, range(1, 6))
    for _ in range(w.one(1, 1, 2)):
        perm = list(range(x.rank))
        w.random.shuffle(perm)
        if x.rank == 4 and w.chance(0.5):
            perm = list(w.one((0, 2, 3, 1), (0, 3, 1, 2)))
        x = transpose(w, x, perm, show=w.chance(0.6))
        if w.chance(0.4):
            x = chain(w, x, show=w.chance(0.3))


def transpose(w: Writer, x: Value, perm: Sequence[int], *, show: bool = True) -> Value:
    """Write a Transpose."""
    turns_all = list(perm) == list(range(x.rank))[::-1]
    given: Attributes = {} if turns_all and (not perm or w.chance(0.5)) else {"perm": list(perm)}
    return w.add("Transpose", [x], [x.shape[i] for i in perm], [x.varies[i] for i in perm], show=show, **given)


@family(3)
def _transposed_work(w: Writer) -> None:
    """Something between two transposes that undo one another, or nearly."""
    x = w.pick(FLOATS, range(2, 5), lambda one: one.size > 0)
    perm = list(range(x.rank))
    w.random.shuffle(perm)
    back = [perm.index(i) for i in range(x.rank)]
    y = transpose(w, x, perm, show=w.chance(0.1))
    for _ in range(w.one(1, 2, 3)):
        what = w.random.randrange(7)
        if what < 2:
            y = chain(w, y, show=False)
        elif what == 2:
            y = w.either(w.one("Add", "Mul"), y, w.like(y), show=False)
        elif what == 3:
            axis = w.random.randrange(y.rank)
            size = 1 if y.varies[axis] else y.shape[axis]
            y = w.either("Add", y, w.noise((size, *(1,) * (y.rank - axis - 1)), y.dtype), show=False)
        elif what == 4:
            y = reduce(w, w.one("ReduceMean", "ReduceSum", "ReduceMax"), y, some_axes(w, y), show=False)
        elif what == 5:
            y = w.add("Softmax", [y], axis=w.random.randrange(y.rank), show=False)
        else:
            y = _concatenated(w, y)
    transpose(w, y, w.usual(back, perm))


def _concatenated(w: Writer, x: Value, axis: int | None = None) -> Value:
    w.require(x.rank > 0)
    axis = w.random.randrange(x.rank) if axis is None else axis
    parts = [x, *(w.like(x) for _ in range(w.one(1, 1, 2)))]
    if w.chance(0.2):
        parts = parts[:1]
    if w.chance(0.15) and x.static:
        parts.insert(
            w.random.randrange(2), w.noise([0 if i == axis else dim for i, dim in enumerate(x.shape)], x.dtype)
        )
    shape = list(x.shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return w.add("Concat", parts, shape, x.varies, axis=axis - w.one(0, x.rank))


@family(2)
def _concat(w: Writer) -> None:
    _concatenated(w, w.pick((*ANY, STRING), range(1, 6)))


@family(2)
def _split(w: Writer) -> None:
    x = w.pick(ANY, range(1, 5), lambda one: any(not v and d > 0 for d, v in zip(one.shape, one.varies, strict=True)))
    axis = w.one(*(i for i, (d, v) in enumerate(zip(x.shape, x.varies, strict=True)) if not v and d > 0))
    size = x.shape[axis]
    parts = [size]
    if w.chance(0.8):
        cut = w.random.randint(0, size)
        parts = [cut, size - cut] if w.chance(0.7) or size < 3 else [1, size - 2, 1]
    equal = size % 2 == 0 and w.chance(0.3)
    if equal:
        parts = [size // 2] * 2
    results = [(x.dtype, (*x.shape[:axis], part, *x.shape[axis + 1 :]), x.varies) for part in parts]
    at = axis - w.one(0, x.rank)
    if equal and w.chance(0.6):
        count: Attributes = {"num_outputs": 2} if w.opset >= 18 else {}
        made = w.node("Split", [x], results, axis=at, **count)
    else:
        made = w.node("Split", [x, w.ints(*parts)], results, axis=at)
    if w.chance(0.4):
        order = made if w.chance(0.7) else made[::-1]
        w.add("Concat", order, x.shape, x.varies, axis=w.usual(at, axis))
    w.show(*made)


def _bounds(w: Writer, size: int) -> tuple[int, int, int]:
    step_ = w.usual(1, 2, -1, odds=0.75)
    if step_ < 0:
        return w.one(-1, size - 1, 2**31), w.one(-(2**31), -size - 1, 0), step_
    return w.one(0, 0, 0, 1, -size, -1), w.one(size, 2**31 - 1, 2**63 - 1, -1, size - 1, 1), step_


@family(3)
def _slice(w: Writer) -> None:
    x = w.pick((*ANY, STRING), range(1, 6))
    axes = w.random.sample(range(x.rank), w.one(1, 1, min(2, x.rank)))
    if w.chance(0.2):
        axes = list(range(len(axes)))
    shape, varies = list(x.shape), list(x.varies)
    starts, ends, steps = [], [], []
    for axis in axes:
        start, end, step_ = _bounds(w, x.shape[axis])
        shape[axis] = len(range(x.shape[axis])[slice(*_clamped(start, end, step_, x.shape[axis]))])
        starts.append(start)
        ends.append(end)
        steps.append(step_)
    kind = w.usual(I64, I32) if max(map(abs, ends)) < 2**31 and max(map(abs, starts)) < 2**31 else I64
    given: list[Value | None] = [w.ints(*starts, dtype=kind), w.ints(*ends, dtype=kind)]
    named = axes != list(range(len(axes))) or w.chance(0.7)
    given.append(w.ints(*(a - w.one(0, x.rank) for a in axes), dtype=kind) if named else None)
    if any(one != 1 for one in steps) or w.chance(0.3):
        given.append(w.ints(*steps, dtype=kind))
    w.add("Slice", [x, *given], shape, varies)


def _clamped(start: int, end: int, step_: int, size: int) -> tuple[int, int | None, int]:
    """ONNX's bounds as Python's."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step_ < 0:
        start, stop = min(max(start, -1), size - 1), min(max(end, -1), size - 1)
        if start < 0:
            return 0, 0, 1
        return start, None if stop < 0 else stop, step_
    return min(max(start, 0), size), min(max(end, 0), size), step_


@family(1)
def _dynamic_slice(w: Writer) -> None:
    """The first rows, as many as another tensor has."""
    x = w.pick(NUMBERS, range(1, 5))
    y = w.pick(NUMBERS, range(1, 5), lambda one: one.shape[0] == x.shape[0] and one.varies[0] == x.varies[0])
    w.add("Slice", [x, w.ints(0), w.dim(y, 0), w.ints(0)], x.shape, x.varies)


def indices(w: Writer, shape: Sequence[int], size: int) -> Value:
    """Constant indices into an axis, from either end."""
    numbers = w.sheet.numbers.integers(-size if w.chance(0.5) else 0, size, tuple(shape))
    return w.constant(numbers, w.one(I64, I64, I32))


@family(3)
def _gather(w: Writer) -> None:
    x = w.pick((*ANY, STRING), range(1, 5), lambda one: one.size > 0)
    axis = w.random.randrange(x.rank)
    size = 1 if x.varies[axis] else x.shape[axis]
    picked = indices(w, w.one((), (1,), (2,), (1, 2), (0,), (size,)), size)
    if not x.varies[axis] and w.chance(0.3):
        count = w.random.randint(0, size)
        first = w.constant(np.int64(w.one(0, 0, -count)))
        limit = w.elementwise("Add", first, w.constant(np.int64(count)), show=False)
        picked = w.add("Range", [first, limit, w.constant(np.int64(1))], (count,), dtype=I64, show=False)
    shape = (*x.shape[:axis], *picked.shape, *x.shape[axis + 1 :])
    varies = (*x.varies[:axis], *picked.varies, *x.varies[axis + 1 :])
    w.add("Gather", [x, picked], shape, varies, axis=axis - w.one(0, x.rank))


@family(1)
def _gather_forms(w: Writer) -> None:
    x = w.pick((F32, F64, I64), range(1, 4), lambda one: one.size > 0 and one.static)
    if w.chance(0.5):
        axis = w.random.randrange(x.rank)
        picked = indices(w, x.shape, x.shape[axis])
        if w.chance(0.5):
            w.add("GatherElements", [x, picked], axis=axis)
        else:
            order = np.argsort(w.sheet.numbers.random(x.shape), axis=axis)
            w.add("ScatterElements", [x, w.constant(order), w.like(x)], axis=axis)
        return
    picked = w.constant(w.sheet.numbers.integers(0, x.shape[0], (2, 1)))
    w.add("GatherND", [x, picked], (2, *x.shape[1:]), (False,) * x.rank)


@family(4)
def _reshape(w: Writer) -> None:
    x = w.pick((*ANY, STRING), range(6))
    for _ in range(w.one(1, 1, 1, 2, 3)):
        x = _moved(w, x)


def _moved(w: Writer, x: Value) -> Value:
    """One of the ops that only rename elements."""
    what = w.one("reshape", "reshape", "reshape", "unsqueeze", "squeeze", "flatten", "computed", "same")
    show = w.chance(0.5)
    if what == "unsqueeze":
        w.require(x.rank < 5)
        at = w.random.randrange(x.rank + 1)
        shape, varies = list(x.shape), list(x.varies)
        shape.insert(at, 1)
        varies.insert(at, False)
        return w.add("Unsqueeze", [x, w.ints(at - w.one(0, x.rank + 1))], shape, varies, show=show)
    if what == "squeeze":
        ones = [i for i, dim in enumerate(x.shape) if dim == 1 and not x.varies[i]]
        w.require(bool(ones))
        at = w.random.choice(ones)
        shape, varies = reduced(x, [at], False)
        return w.add("Squeeze", [x, w.ints(at - w.one(0, x.rank))], shape, varies, show=show)
    if what == "flatten":
        axis = w.random.randint(0, x.rank)
        shape = [int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))]
        return w.add("Flatten", [x], shape, [any(x.varies[:axis]), any(x.varies[axis:])], show=show, axis=axis)
    if what == "same":
        return w.add("Reshape", [x, w.whole_shape(x)], show=show)
    return reshape(w, x, computed=what == "computed", show=show)


def reshape(w: Writer, x: Value, *, computed: bool = False, show: bool = True) -> Value:
    """Write a Reshape that merges and splits dimensions."""
    groups: list[tuple[int, bool, list[int]]] = []  # size, varies, the axes that it comes from
    for axis, (dim, vary) in enumerate(zip(x.shape, x.varies, strict=True)):
        if groups and w.chance(0.3):
            size, varied, axes = groups[-1]
            groups[-1] = (size * dim, varied or vary, [*axes, axis])
        elif not vary and dim > 1 and dim % 2 == 0 and w.chance(0.3):
            groups += [(2, False, []), (dim // 2, False, [])]
        elif not vary and dim == 1 and w.chance(0.3):
            continue
        else:
            groups.append((dim, vary, [axis]))
        if w.chance(0.1):
            groups.append((1, False, []))
    w.require(len(groups) < 6)
    target: list[int | Value] = []
    free = x.size > 0 or w.chance(0.1)
    for i, (size, vary, axes) in enumerate(groups):
        stays = axes == [i]
        if vary:
            if stays and not computed and w.chance(0.7):
                target.append(0)
            elif free and not (computed and w.chance(0.6)):
                target.append(-1)
                free = False
            else:
                target.append(_multiplied(w, x, axes))
        elif free and w.chance(0.15):
            target.append(-1)
            free = False
        elif stays and w.chance(0.25) and not computed:
            target.append(0)
        else:
            target.append(size)
    allowzero: Attributes = {}
    if 0 in x.shape and all(isinstance(one, int) and one > 0 for one in target) and not free:
        raise_ = True
        w.require(not raise_)
    if w.opset >= 14 and 0 not in target and w.chance(0.15) and -1 not in target:
        allowzero = {"allowzero": 1}
    if not allowzero and any(size == 0 and not vary and axes != [i] for i, (size, vary, axes) in enumerate(groups)):
        w.require(w.opset >= 14 and -1 not in target)
        target = [size if one == 0 else one for one, (size, _, _) in zip(target, groups, strict=True)]
        w.require(not any(vary for _, vary, _ in groups))
        allowzero = {"allowzero": 1}
    where = _target(w, target, computed)
    return w.add(
        "Reshape", [x, where], [size for size, _, _ in groups], [vary for _, vary, _ in groups], show=show, **allowzero
    )


def _multiplied(w: Writer, x: Value, axes: Sequence[int]) -> Value:
    result = w.dim(x, axes[0]) if axes else w.ints(1)
    for axis in axes[1:]:
        result = w.either("Mul", result, w.dim(x, axis), show=False)
    return result


def _target(w: Writer, target: Sequence[int | Value], computed: bool) -> Value:
    if not computed and all(isinstance(one, int) for one in target):
        return w.ints(*(one for one in target if isinstance(one, int)))
    parts: list[Value] = []
    pending: list[int] = []
    for one in target:
        if isinstance(one, int):
            pending.append(one)
            continue
        if pending:
            parts.append(w.ints(*pending))
            pending = []
        parts.append(one)
    if pending or not parts:
        parts.append(w.ints(*pending))
    return w.add("Concat", parts, (len(target),), show=False, axis=0)


@family(2)
def _expand(w: Writer) -> None:
    x = w.pick(ANY, range(5))
    if w.chance(0.5):
        like = w.pick(NUMBERS, where=lambda one: _broadcasts(one, x))
        shape = np.broadcast_shapes(x.shape, like.shape)
        varies = [any(one.varies[-i] for one in (x, like) if one.rank >= i) for i in range(len(shape), 0, -1)]
        w.add("Expand", [x, w.whole_shape(like)], shape, varies)
    else:
        to = [1 if vary or w.chance(0.4) else dim if dim != 1 else w.one(1, 2) for dim, vary in _pairs(x)]
        shape = np.broadcast_shapes(x.shape, tuple(to))
        w.add("Expand", [x, w.ints(*to)], shape, x.varies)


def _pairs(x: Value) -> list[tuple[int, bool]]:
    return list(zip(x.shape, x.varies, strict=True))


@family(1)
def _tile(w: Writer) -> None:
    x = w.pick((*NUMBERS, BOOL), range(1, 5))
    times = [w.usual(1, 2, 0, odds=0.75) for _ in x.shape]
    w.add("Tile", [x, w.ints(*times)], [dim * n for dim, n in zip(x.shape, times, strict=True)], x.varies)


@family(1)
def _filled(w: Writer) -> None:
    like = w.pick(NUMBERS, range(1, 4))
    dtype = w.one(F32, I64, w.sheet.dtype)
    number = np.array([w.one(0, 1, 2)], helper.tensor_dtype_to_np_dtype(dtype))
    attributes = {"value": helper.make_tensor("", dtype, [1], number)} if dtype != F32 or w.chance(0.6) else {}
    y = w.add("ConstantOfShape", [w.whole_shape(like)], like.shape, like.varies, dtype=dtype, **attributes)
    if like.dtype == dtype and w.chance(0.6):
        w.either(w.one("Add", "Mul", "Sub"), like, y)


@family(1)
def _range(w: Writer) -> None:
    like = w.pick(NUMBERS, range(1, 4))
    axis = w.random.randrange(like.rank)
    n = w.add("Squeeze", [w.dim(like, axis), w.ints(0)], (), show=False)
    y = w.add(
        "Range", [w.constant(np.int64(0)), n, w.constant(np.int64(1))], like.shape[axis : axis + 1],
        like.varies[axis : axis + 1], dtype=I64,
    )  # fmt: skip
    if w.chance(0.5):
        w.add("Gather", [like, y], like.shape, like.varies, axis=axis)


@family(1.5)
def _shape(w: Writer) -> None:
    """Sizes as numbers; and casts before a Shape."""
    x = w.pick((*NUMBERS, BOOL))
    if w.chance(0.5) and x.dtype in NUMBERS:
        x = w.add("Cast", [x], dtype=F32, to=F32, show=False) if w.chance(0.5) else chain(w, x, show=False)
    if w.chance(0.3):
        w.add("Size", [x], (), dtype=I64)
    elif w.opset >= 15 and w.chance(0.5):
        start, end = w.random.randint(-x.rank - 1, x.rank), w.random.randint(-x.rank - 1, x.rank + 1)
        count = len(x.shape[slice(*_clamped(start, end, 1, x.rank))]) if x.rank else 0
        w.add("Shape", [x], (count,), dtype=I64, start=start, end=end)
    else:
        w.show(w.whole_shape(x))


@family(1)
def _shape_number(w: Writer) -> None:
    """A dimension that scales numbers."""
    x = w.pick(FLOATS, range(1, 5))
    n = w.dim(x, w.random.randrange(x.rank))
    n = w.add("Cast", [n], dtype=x.dtype, to=x.dtype, show=False)
    if w.chance(0.5):
        n = w.add("Sqrt", [n], show=False)
    w.elementwise(w.one("Mul", "Add"), x, n)


@family(0.5)
def _triangle(w: Writer) -> None:
    w.require(w.opset >= 14)
    x = w.pick((F32, F64, I64, BOOL), range(2, 5))
    k = w.constant(np.int64(w.one(0, 1, -1))) if w.chance(0.5) else None
    w.add("Trilu", [x, k], upper=w.one(0, 1))


@family(0.5)
def _one_hot(w: Writer) -> None:
    x = w.pick((I64,), range(3))
    w.add(
        "OneHot", [x, w.constant(np.int64(4)), w.constant(np.array([0, 1], np.float32))], (*x.shape, 4),
        (*x.varies, False), dtype=F32, axis=-1,
    )  # fmt: skip


@family(0.5)
def _non_zero(w: Writer) -> None:
    x = w.pick((F32, I64, BOOL), (1, 2))
    y = w.add("NonZero", [x], (x.rank, max(x.size, 1)), (False, True), dtype=I64, show=False)
    w.add("Transpose", [y], y.shape[::-1], y.varies[::-1], perm=[1, 0], show=False)
    if w.chance(0.5):
        w.add("Shape", [y], (2,), dtype=I64)


@family(0.7)
def _einsum(w: Writer) -> None:
    x = w.pick((F32, F64), (2, 3), lambda one: one.size > 0)
    if x.rank == 2:
        spelling = w.one("ij->ji", "ij,ij->ij", "ij,kj->ik", "ij->i")
    else:
        spelling = w.one("bij,bkj->bik", "bij->bji", "bij,bij->bi")
    left, _, right = spelling.partition("->")
    terms = left.split(",")
    names = dict(zip(terms[0], _pairs(x), strict=True))
    operands = [x, *(w.like(x) for _ in terms[1:])]
    for term, operand in zip(terms, operands, strict=True):
        names.update(zip(term, _pairs(operand), strict=True))
    pairs = [names[letter] for letter in right]
    w.add("Einsum", operands, [dim for dim, _ in pairs], [vary for _, vary in pairs], equation=spelling)


@family(1)
def _dropout(w: Writer) -> None:
    x = w.pick(FLOATS)
    ratio = w.constant(np.float32(0.5)) if w.chance(0.5) else None
    training = w.constant(np.array(False)) if ratio is not None and w.chance(0.5) else None
    if w.chance(0.3):
        w.show(*w.node("Dropout", [x, ratio, training], [(x.dtype, x.shape, x.varies), (BOOL, x.shape, x.varies)]))
    else:
        w.add("Dropout", [x, ratio, training])


@family(0.8)
def _text(w: Writer) -> None:
    try:
        x = w.pick((STRING,))
    except Exception:
        w.require(w.parent is None and not w.body and w.chance(0.2))
        x = w.input(STRING, [w.size("N", 2, 3)])
    what = w.random.randrange(4)
    if what == 0:
        constant = np.empty(1, object)
        constant[0] = w.one("a", "b", "")
        y = w.constant(constant, STRING)
        w.elementwise("Equal", x, y, dtype=BOOL) if w.opset >= 19 else w.add("Identity", [x])
    elif what == 1 and w.opset >= 20:
        w.elementwise("StringConcat", x, w.like(x))
    else:
        w.add("Identity", [x])


@family(0.15)
def _random(w: Writer) -> None:
    x = w.pick((F32,), where=lambda one: one.size > 0)
    for _ in range(w.one(1, 2)):
        noise = w.add(w.one("RandomNormalLike", "RandomUniformLike"), [x], seed=1.0)
        w.elementwise("Add", x, noise)


# -- quantization -----------------------------------------------------------------------------------------------------


def parameters(w: Writer, dtype: int, shape: Sequence[int] = ()) -> tuple[Value, Value | None]:
    """A scale and a zero point; none stands for the 0 of uint8."""
    scale = w.constant(np.full(tuple(shape), w.one(0.1, 0.05, 0.02)), F32)
    if dtype == U8 and w.chance(0.1):
        return scale, None
    zero = w.one(0, 128, 100) if dtype == U8 else w.one(0, 0, 3)
    return scale, w.constant(np.full(tuple(shape), zero), dtype)


def quantized(w: Writer, x: Value, *, show: bool = False) -> tuple[Value, tuple[Value, Value | None]]:
    """Write a QuantizeLinear; its result and its parameters."""
    dtype = w.one(U8, I8)
    how = parameters(w, dtype)
    return w.add("QuantizeLinear", [x, *how], dtype=dtype, show=show), how


def dequantized(w: Writer, x: Value, how: tuple[Value, Value | None], *, show: bool = True) -> Value:
    """Write a DequantizeLinear."""
    return w.add("DequantizeLinear", [x, *how], dtype=F32, show=show)


@family(2.5)
def _quantize(w: Writer) -> None:
    x = w.pick((F32,), range(1, 5))
    q, how = quantized(w, x, show=w.chance(0.2))
    if w.chance(0.3):
        what = w.one("transpose", "reshape", "relu", "identity")
        if what == "transpose":
            q = transpose(w, q, w.random.sample(range(q.rank), q.rank), show=False)
        elif what == "reshape":
            q = reshape(w, q, show=False)
        else:
            q = w.add("Identity", [q], show=False)
    if w.chance(0.15):
        how = parameters(w, q.dtype)
    y = dequantized(w, q, how)
    if w.chance(0.4):
        again, how = quantized(w, y) if w.chance(0.4) else (w.add("QuantizeLinear", [y, *how], dtype=q.dtype), how)
        dequantized(w, again, how)


@family(1.5)
def _qdq_unit(w: Writer) -> None:
    """An op between dequantized operands."""
    x = w.pick((F32,), range(2, 5), lambda one: one.size > 0)
    a, how = quantized(w, x)
    a = dequantized(w, a, how, show=False)
    what = w.one("relu", "clip", "add", "matmul", "conv", "transpose", "where", "softmax", "pool")
    if what == "relu":
        y = w.add("Relu", [a], show=False)
    elif what == "clip":
        y = w.add("Clip", [a, w.scalar(0, a, rank=0), w.scalar(6, a, rank=0)], show=False)
    elif what == "add":
        b, other = quantized(w, w.like(x))
        y = w.elementwise(w.one("Add", "Mul"), a, dequantized(w, b, other, show=False), show=False)
    elif what == "matmul" and not x.varies[-1]:
        weight = w.constant(w.sheet.numbers.integers(-5, 5, (x.shape[-1], 3)), I8)
        b = dequantized(w, weight, (w.constant(np.float32(0.1)), w.constant(np.int8(0))), show=False)
        y = w.add("MatMul", [a, b], (*x.shape[:-1], 3), (*x.varies[:-1], False), show=False)
    elif what == "conv" and x.rank == 4 and not x.varies[1]:
        y = _quantized_conv(w, a)
    elif what == "transpose":
        y = transpose(w, a, w.random.sample(range(a.rank), a.rank), show=False)
    elif what == "softmax":
        y = w.add("Softmax", [a], show=False, axis=-1)
    elif what == "pool" and x.rank == 4:
        y = _pool(w, a)
    else:
        y = w.add("Sigmoid", [a], show=False)
    q, how = quantized(w, y)
    dequantized(w, q, how)


def _quantized_conv(w: Writer, a: Value) -> Value:
    channels = a.shape[1]
    weight = w.constant(w.sheet.numbers.integers(-5, 5, (2, channels, 1, 1)), I8)
    scale, zero = w.constant(np.array([0.1, 0.2]), F32), w.constant(np.zeros(2), I8)
    b = w.add("DequantizeLinear", [weight, scale, zero], dtype=F32, show=False, axis=0)
    bias = None
    if w.chance(0.5):
        content = w.constant(w.sheet.numbers.integers(-50, 50, 2), I32)
        bias = w.add(
            "DequantizeLinear", [content, w.constant(np.array([0.01, 0.02]), F32)], dtype=F32, show=False, axis=0
        )
    return w.add("Conv", [a, b, bias], (a.shape[0], 2, *a.shape[2:]), a.varies, show=False)


@family(0.8)
def _integer_products(w: Writer) -> None:
    x = w.pick((F32,), range(2, 4), lambda one: not one.varies[-1] and one.size > 0)
    results = [(U8, x.shape, x.varies), (F32, (), ()), (U8, (), ())]
    q, scale, zero = w.node("DynamicQuantizeLinear", [x], results)
    weight = w.constant(w.sheet.numbers.integers(-5, 5, (x.shape[-1], 3)), I8)
    shape, varies = (*x.shape[:-1], 3), (*x.varies[:-1], False)
    y = w.add("MatMulInteger", [q, weight, zero, w.constant(np.int8(0))], shape, varies, dtype=I32, show=w.chance(0.1))
    y = w.add("Cast", [y], dtype=F32, to=F32, show=w.chance(0.1))
    both = w.either("Mul", scale, w.constant(np.float32(0.1)), show=w.chance(0.1))
    y = w.either("Mul", y, both, show=w.chance(0.3))
    if w.chance(0.5):
        w.either("Add", y, w.noise(w.usual((3,), (1,)), F32))
    w.maybe_show(scale)


@family(0.6)
def _qlinear(w: Writer) -> None:
    x = w.pick((F32,), (2,), lambda one: not one.varies[-1] and one.size > 0)
    q, (scale, zero) = quantized(w, x)
    w.require(zero is not None)
    weight = w.constant(w.sheet.numbers.integers(0, 9, (x.shape[-1], 3)), U8)
    how: list[Value | None] = [w.constant(np.float32(0.1)), w.constant(np.uint8(4))]
    out, zero_out = parameters(w, q.dtype)
    w.require(zero_out is not None and q.dtype == U8)
    shape, varies = (x.shape[0], 3), (x.varies[0], False)
    y = w.add("QLinearMatMul", [q, scale, zero, weight, *how, out, zero_out], shape, varies, dtype=q.dtype, show=False)
    dequantized(w, y, (out, zero_out))
