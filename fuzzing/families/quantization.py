"""Ops on quantized values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuzzing.families.images import pool
from fuzzing.families.movement import transpose
from fuzzing.families.registry import family
from fuzzing.families.reshaping import reshape
from fuzzing.writer import F32, I8, I32, U8, Value, Writer


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
        y = pool(w, a)
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
