"""Calls of ops that work on each element, and of those that keep a shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import defs

from fuzzing.calls.draw import FLOATS, Array, Draw, Drawn, drawing, number_of, numpy_of

_CHOICES = {
    "approximate": ("none", "tanh"),
    "direction": ("LEFT", "RIGHT"),
}


def attributes(d: Draw, *left_out: str) -> dict[str, Any]:
    """Attributes of the op's schema, each left out half of the time."""
    made: dict[str, Any] = {}
    kinds = defs.OpSchema.AttrType
    for name, one in defs.get_schema(d.op, d.opset, d.domain).attributes.items():
        if name in left_out or not (one.required or d.chance(0.5)):
            continue
        if name in _CHOICES:
            made[name] = d.one(*_CHOICES[name])
        elif one.type == kinds.INT:
            made[name] = d.one(-2, -1, 0, 1, 1, 2)
        elif one.type == kinds.FLOAT:
            made[name] = d.one(0.5, 1.0, -1.0, 2.0)
    return made


@drawing(
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf"),
    *("Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Hardmax", "LeakyRelu", "Log", "LogSoftmax"),
    *("LpNormalization", "Mish", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh"),
    *("Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Identity", "Neg", "Abs"),
    *("Not", "IsNaN", "IsInf"),
)
def unary(d: Draw) -> Drawn:
    """An operand, and whatever attributes there are."""
    parameter = {"Not": "T", "IsNaN": "T1", "IsInf": "T1", "HardSwish": "T"}.get(d.op, "T")
    if d.op == "Identity" and d.opset >= 14:
        parameter = "V"
    return d.call([d.tensor(d.dtype(parameter), d.shape(0, 4))], **attributes(d, "consumed_inputs"))


@drawing("CumSum", "CumProd")
def cumulative(d: Draw) -> Drawn:
    """Along an axis that is an operand."""
    shape = d.shape(1, 3)
    axis = np.array(d.axis(len(shape)), numpy_of(d.one("int32", "int64")))
    return d.call(
        [d.tensor(d.dtype("T"), shape), axis if d.chance(0.8) else axis.reshape(1)],
        exclusive=d.one(None, 0, 1),
        reverse=d.one(None, 0, 1),
    )


@drawing("Clip")
def clip(d: Draw) -> Drawn:
    """Bounds are attributes before opset 11 and operands since."""
    dtype = d.dtype("T")
    x = d.tensor(dtype, d.shape())
    if d.opset < 11:
        return d.call([x], min=d.one(None, -1.0), max=d.one(None, 1.0))
    bounds = [d.tensor(dtype, d.one((), (), (1,))) if d.chance(0.7) else None for _ in range(2)]
    return d.call([x, *bounds])


@drawing("LRN")
def local_response(d: Draw) -> Drawn:
    """Over channels."""
    return d.call([d.tensor("float", d.shape(2, 4))], size=d.one(1, 3, 2))


@drawing("MeanVarianceNormalization")
def mean_variance(d: Draw) -> Drawn:
    """Over axes."""
    shape = d.shape(2, 4)
    return d.call([d.tensor("float", shape)], axes=d.axes(len(shape)) if d.chance(0.5) else None)


@drawing("Trilu")
def trilu(d: Draw) -> Drawn:
    """Above or below a diagonal."""
    k = np.array(d.one(-9, -1, 0, 1, 9), np.int64) if d.chance(0.6) else None
    return d.call([d.tensor(d.dtype("T"), d.shape(1, 4)), k], upper=d.one(None, 0, 1))


@drawing("ReverseSequence")
def reverse_sequence(d: Draw) -> Drawn:
    """Batch and time are the first two axes, in either order."""
    shape = d.shape(2, 4)
    batch = d.one(0, 1)
    lengths = [d.number(0, max(shape[1 - batch], 1)) for _ in range(shape[batch])]
    return d.call([d.tensor(d.dtype("T"), shape), d.ints(lengths)], batch_axis=batch, time_axis=1 - batch)


@drawing("ScatterElements", "Scatter")
def scatter_elements(d: Draw) -> Drawn:
    """Updates along an axis."""
    shape = d.shape(1, 3)
    axis = d.axis(len(shape))
    size = shape[axis] if -len(shape) <= axis < len(shape) else 1
    where = tuple(d.number(0, dim) for dim in shape)
    places = np.array([d.number(-size, size - 1) if size else 0 for _ in range(math.prod(where))], np.int64)
    dtype = d.dtype("T")
    reduction = (
        d.one(None, None, "none", "add", "mul", "max", "min") if d.op == "ScatterElements" and d.opset >= 16 else None
    )
    return d.call(
        [d.tensor(dtype, shape), places.reshape(where), d.tensor(dtype, where)], axis=axis, reduction=reduction
    )


@drawing("ScatterND")
def scatter_nd(d: Draw) -> Drawn:
    """Slices of the first operand."""
    shape = d.shape(1, 3, zero=False)
    depth = d.number(1, len(shape))
    outer = d.shape(0, 2)
    places = np.array([d.number(-dim, dim - 1) for _ in range(math.prod(outer)) for dim in shape[:depth]], np.int64)
    dtype = d.dtype("T")
    return d.call([d.tensor(dtype, shape), places.reshape(*outer, depth), d.tensor(dtype, (*outer, *shape[depth:]))])


@drawing("TensorScatter")
def tensor_scatter(d: Draw) -> Drawn:
    """A cache and what is written into it."""
    batch, heads, longest, size = 2, d.size(), d.number(2, 6), d.size()
    new = d.number(1, longest)
    at = d.ints([d.number(0, longest - new) for _ in range(batch)]) if d.chance(0.6) else None
    return d.call([d.tensor("float", (batch, heads, longest, size)), d.tensor("float", (batch, heads, new, size)), at])


_TO = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", *FLOATS, "bfloat16", "string")


@drawing("Cast", "CastLike")
def cast(d: Draw) -> Drawn:
    """From any dtype to any; floats that do not fit too."""
    source = d.dtype("T1", *_TO) if d.op == "Cast" else d.one(*_TO[:-2])
    x = d.tensor(source, d.shape(0, 3))
    target = d.one(*_TO[:-1]) if source != "string" else d.one("int64", "float")
    if d.op == "CastLike":
        return d.call([x, d.tensor(target, d.shape(0, 1))])
    return d.call([x], to=number_of(target) if d.opset >= 6 else target.upper())


def guarded(a: Array, b: Array) -> None:
    """Take away what ends the process: an integer division by 0, the smallest integer by -1."""
    if a.dtype.kind in "iu":
        b[b == 0] = 2
    if a.dtype.kind == "i":
        b[b == -1] = 3


@drawing(
    *("Add", "Sub", "Mul", "Div", "Mod", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Pow", "PRelu", "Equal"),
    *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor"),
)
def binary(d: Draw) -> Drawn:
    """Two operands that broadcast."""
    if d.op == "Pow" and d.opset >= 7 and d.chance(0.3):  # few negative numbers have powers
        base = np.asarray(np.abs(d.tensor("float", d.shape(0, 1))))
        return d.call([base, np.array(d.one(0.5, -0.5, 1.1, 0, 2, -3), np.float32)])
    shape = d.shape(0, 3)
    dtype = d.dtype("T", *_TO) if d.chance(0.9) else d.dtype("T")
    other = d.dtype("T1") if d.op == "Pow" and d.opset >= 12 else dtype
    a, b = d.tensor(dtype, shape), d.tensor(other, d.broadcast(shape))
    if d.chance(0.5) and d.op != "PRelu" and not (d.op == "Pow" and other != dtype):
        a, b = b, a
    if d.op in ("Div", "Mod"):
        guarded(a, b)
    given = attributes(d, "consumed_inputs", "broadcast", "axis", "fmod")
    if d.op == "Mod":
        given["fmod"] = d.one(None, 0, 1) if dtype.startswith(("int", "uint")) else 1
    if d.opset < 7 and d.op not in ("PRelu", "GreaterOrEqual", "LessOrEqual"):
        given.update(_old_broadcast(d))
    return d.call([a, b], **given)


def _old_broadcast(d: Draw) -> dict[str, Any]:
    return {"broadcast": d.one(0, 1, 1), "axis": d.one(None, None, 0, 1, -1)}


@drawing("Max", "Min", "Sum", "Mean")
def variadic(d: Draw) -> Drawn:
    """One to four operands."""
    shape, dtype = d.shape(0, 3), d.dtype("T")
    shapes = [shape] + [d.broadcast(shape) for _ in range(d.number(0, 3))]
    return d.call([d.tensor(dtype, one) for one in shapes])


@drawing("Where")
def where(d: Draw) -> Drawn:
    """A condition and two choices."""
    shape, dtype = d.shape(0, 3), d.dtype("T")
    return d.call(
        [d.tensor("bool", d.broadcast(shape)), d.tensor(dtype, d.broadcast(shape)), d.tensor(dtype, d.broadcast(shape))]
    )


@drawing("Dropout")
def dropout(d: Draw) -> Drawn:
    """Without training, which draws numbers."""
    outputs = d.number(1, 2)
    x = d.tensor(d.dtype("T"), d.shape())
    if d.opset < 12:
        return d.call([x], outputs, ratio=d.one(None, 0.5), is_test=1 if d.opset < 7 else None)
    return d.call([x, np.array(0.5, np.float32) if d.chance(0.5) else None], outputs)


@drawing("Bernoulli", "RandomNormalLike", "RandomUniformLike")
def random_like(d: Draw) -> Drawn:
    """In the operand's shape; the numbers are nobody's business."""
    x = d.tensor(d.one(*FLOATS), d.shape()) ** 2
    return d.call([np.clip(x, 0, 1).astype(x.dtype)], dtype=d.one(None, 1, 11, 1))


@drawing("EyeLike")
def eye_like(d: Draw) -> Drawn:
    """Ones on a diagonal."""
    return d.call([d.tensor(d.dtype("T1"), d.shape(2, 2))], dtype=d.one(None, 1, 7, 11), k=d.one(None, -9, -1, 0, 1, 9))


@drawing("Multinomial")
def multinomial(d: Draw) -> Drawn:
    """Rows of samples."""
    return d.call(
        [d.tensor("float", (d.size(), d.number(1, 4)))],
        sample_size=d.one(None, 1, 3),
        dtype=d.one(None, 6, 7),
        seed=1.0,
    )


@drawing("RandomNormal", "RandomUniform")
def random(d: Draw) -> Drawn:
    """What the attributes say."""
    return d.call([], shape=list(d.shape(1, 3)), dtype=d.one(None, 1, 11))
