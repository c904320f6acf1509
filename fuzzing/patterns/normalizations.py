"""Normalizations that are spelled out."""

from __future__ import annotations

import numpy as np

from fuzzing.families.images import image
from fuzzing.families.reductions import reduce
from fuzzing.patterns.operands import constant_number, constant_row, features
from fuzzing.patterns.registry import plant
from fuzzing.writer import F16, F32, F64, Value, Writer


def _square(w: Writer, x: Value) -> Value:
    if w.chance(0.3):
        return w.elementwise("Mul", x, x if w.chance(0.95) else w.like(x), show=False)
    return w.elementwise("Pow", x, constant_number(w, 2.0, x, 3.0, 1.0), show=False)


def _divided(w: Writer, x: Value, variance: Value, epsilon: float) -> Value:
    """The last steps: x / Sqrt(variance + ε) in its spellings."""
    if w.chance(0.95):
        variance = w.either("Add", variance, constant_number(w, epsilon, variance, 1.0), show=False)
    root = w.add(w.usual("Sqrt", "Exp", odds=0.96), [variance], show=False)
    if w.chance(0.6):
        return w.elementwise("Div", x, root, show=w.chance(0.1))
    if w.chance(0.5):
        inverse = w.add("Reciprocal", [root], show=False)
    else:
        inverse = w.elementwise("Div", constant_number(w, 1.0, root), root, show=False)
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
    x = features(w)
    if w.chance(0.3):
        x = w.either("Add", x, w.usual(w.like(x), constant_row(w, x)), show=w.chance(0.5))
        if w.chance(0.2):
            x = w.either("Add", x, constant_row(w, x), show=w.chance(0.5))
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
        y = w.either("Mul", y, constant_row(w, y, odds=0.92), show=w.chance(0.1))
        if w.chance(0.85):
            w.require(not y.varies[-1])
            y = w.either("Add", y, constant_row(w, y, odds=0.92), show=w.chance(0.1))
    w.show(y)
    w.maybe_show(mean, centred, variance)


@plant
def _rms_norm(w: Writer) -> None:
    x = features(w)
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
        y = w.either("Mul", y, constant_row(w, y, odds=0.92), show=False)
    w.show(y)
    w.maybe_show(variance)


@plant
def _skip_norm(w: Writer) -> None:
    x = w.pick((F32, F32, F64), (2, 3), lambda one: not one.varies[-1] and one.size > 0)
    y = w.either("Add", x, w.usual(w.like(x), constant_row(w, x)), show=w.chance(0.4))
    w.require(y.shape == x.shape)
    if w.chance(0.3):
        y = w.either("Add", y, w.usual(constant_row(w, x), w.like(x)), show=w.chance(0.2))
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
