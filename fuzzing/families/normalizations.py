"""Softmax and its kin, and the normalization ops."""

from __future__ import annotations

from fuzzing.families.registry import family
from fuzzing.writer import F16, F32, F64, Attributes, Value, Writer


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
