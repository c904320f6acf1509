"""Calls of ops that reshape, and of ops that ask for shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzzing.calls.draw import INT64_MAX, INT64_MIN, Draw, Drawn, drawing, number_of, numpy_of


def _factors(d: Draw, size: int) -> list[int]:
    """A shape of so many elements."""
    made: list[int] = []
    while size > 1 and d.chance(0.8):
        divisor = d.one(*(one for one in range(1, size + 1) if size % one == 0))
        made.append(divisor)
        size //= divisor
    made.append(size)
    d.random.shuffle(made)
    return made


@drawing("Reshape")
def reshape(d: Draw) -> Drawn:
    """Targets with -1 and 0, right ones and wrong ones."""
    shape = d.shape()
    target = _factors(d, math.prod(shape))
    for axis in range(len(target)):
        if d.chance(0.2) and axis < len(shape):
            target[axis] = 0
    if target and d.chance(0.5):
        target[d.number(0, len(target) - 1)] = -1
    if d.chance(0.1):
        target.insert(d.number(0, len(target)), d.one(-1, 0, 1, -2, 2, INT64_MAX, INT64_MIN, 2**32))
    if not target or d.chance(0.05):
        target = d.one([], [-1], [0], [-1, 0], [0, -1])
    x = d.tensor(d.dtype("T"), shape)
    if d.opset < 5:
        return d.call([x], shape=target)
    return d.call([x, d.ints(target)], allowzero=d.one(None, 0, 1) if d.opset >= 14 else None)


@drawing("Flatten")
def flatten(d: Draw) -> Drawn:
    """At every axis, the rank included."""
    shape = d.shape()
    return d.call([d.tensor(d.dtype("T"), shape)], axis=d.one(None, len(shape), d.axis(len(shape))))


@drawing("Squeeze", "Unsqueeze")
def squeeze(d: Draw) -> Drawn:
    """Axes are an attribute before opset 13 and an operand since."""
    shape = tuple(1 if d.chance(0.5) else dim for dim in d.shape())
    if d.op == "Unsqueeze":
        count = d.number(0, 3)
        axes = d.random.sample(range(len(shape) + count), count)
        axes = [axis - len(shape) - count if d.chance(0.4) else axis for axis in axes]
        if d.chance(0.06):
            axes.append(d.axis(len(shape)))
    else:
        axes = [a - len(shape) if d.chance(0.4) else a for a, dim in enumerate(shape) if dim == 1 and d.chance(0.6)]
        if d.chance(0.06):
            axes.append(d.axis(len(shape)))
    x = d.tensor(d.dtype("T"), shape)
    given = d.op == "Unsqueeze" or d.chance(0.7)
    if d.opset < 13:
        return d.call([x], axes=axes if given else None)
    return d.call([x, d.ints(axes) if given else None])


@drawing("Transpose")
def transpose(d: Draw) -> Drawn:
    """Any permutation, or none."""
    shape = d.shape()
    perm = d.random.sample(range(len(shape)), len(shape))
    if perm and d.chance(0.04):
        perm[0] = perm[-1]
    return d.call([d.tensor(d.dtype("T"), shape)], perm=perm if perm and d.chance(0.7) else None)


_BOUNDS = (None, None, 0, 1, 2, -1, -2, 9, -9, INT64_MAX, INT64_MIN, INT64_MIN + 1)


@drawing("Shape")
def shape(d: Draw) -> Drawn:
    """Parts of it from opset 15 on."""
    bounds: dict[str, Any] = {"start": d.one(*_BOUNDS), "end": d.one(*_BOUNDS)} if d.opset >= 15 else {}
    return d.call([d.tensor(d.dtype("T"), d.shape())], **bounds)


@drawing("Size")
def size(d: Draw) -> Drawn:
    """Of anything."""
    return d.call([d.tensor(d.dtype("T"), d.shape())])


@drawing("Expand")
def expand(d: Draw) -> Drawn:
    """To a shape of more, of as many, of fewer dimensions."""
    shape = d.shape(0, 3)
    target = list(d.broadcast(shape))
    if target and d.chance(0.04):
        target[0] = d.one(-1, 0, -2)
    return d.call([d.tensor(d.dtype("T"), shape), d.ints(target)])


@drawing("Tile")
def tile(d: Draw) -> Drawn:
    """Repeats for each dimension, 0 too."""
    shape = d.shape(0, 3)
    if d.opset < 6:
        return d.call([d.tensor("float", shape), d.tensor("float", (1,)), d.tensor("float", (1,))])
    repeats = [d.one(0, 1, 1, 2, 3) for _ in shape]
    if d.chance(0.05):
        repeats.append(d.one(1, -1))
    return d.call([d.tensor(d.dtype("T"), shape), d.ints(repeats)])


@drawing("ConstantOfShape")
def constant_of_shape(d: Draw) -> Drawn:
    """A value of any dtype, or none."""
    target = list(d.shape())
    if target and d.chance(0.04):
        target[0] = d.one(-1, -2)
    value = None
    if d.chance(0.7):
        dtype = d.dtype(
            "T2", "float", "double", "float16", "int64", "int32", "int8", "uint8", "bool", "bfloat16", "uint64"
        )
        shape = (1,) if d.chance(0.95) else d.one((), (2,), (1, 1))
        value = numpy_helper.from_array(d.tensor(dtype, shape))
    return d.call([d.ints(target)], value=value)


@drawing("Range")
def range_(d: Draw) -> Drawn:
    """Steps forwards and backwards, at the ends of the dtype too."""
    dtype = d.dtype("T")
    kind = numpy_of(dtype)
    if kind.kind == "i" and d.chance(0.4):
        info = np.iinfo(kind)
        step = d.one(1, 2, 3, -1, -3, info.max // 2, info.min // 2)
        start = d.one(info.min, info.max, info.min + 3, info.max - 3, 0, 5)
        limit = min(max(start + step * d.number(-1, 5) + d.number(-1, 1), info.min), info.max)
        return d.call([np.array(one, kind) for one in (start, limit, step)])
    return d.call([np.array(one, kind) for one in _few_steps(d, floats=kind.kind == "f")])


def _few_steps(d: Draw, *, floats: bool) -> tuple[float, float, float]:
    """Start, limit and step of a short Range."""
    step: float = d.one(0.1, 0.5, -0.25, 1, -1, 3, 1e-3) if floats else d.one(1, 2, 3, -1, -2)
    start = d.number(-5, 9) / 2 if floats else d.number(-5, 9)
    return start, start + step * d.number(-1, 9) + d.one(0, 0, step / 2 if floats else 1), step


@drawing("DepthToSpace", "SpaceToDepth")
def depth_to_space(d: Draw) -> Drawn:
    """Blocks that fit, mostly."""
    block = d.one(1, 2, 3)
    n, c, h, w = (d.size() for _ in range(4))
    shape = (n, c * block * block, h, w) if d.op == "DepthToSpace" else (n, c, h * block, w * block)
    if d.chance(0.05):
        shape = (n, c, h, w)
    mode = d.one(None, "DCR", "CRD") if d.op == "DepthToSpace" and d.opset >= 11 else None
    return d.call([d.tensor(d.dtype("T"), shape)], blocksize=block, mode=mode)


@drawing("Constant")
def constant(d: Draw) -> Drawn:
    """Every form of its attribute, passed on so that there is something to compute."""
    dtype = d.one("float", "int64", "int32", "uint8", "bool", "string", "double", "float16", "int8", "uint64")
    forms: dict[str, Any] = {"value": numpy_helper.from_array(d.tensor(dtype, d.shape(0, 3)))}
    if d.opset >= 12:
        forms |= {"value_int": d.number(-3, 3), "value_float": 0.5, "value_string": "a"}
        forms |= {"value_ints": [1, -2, 3], "value_floats": [0.5, 1.5], "value_strings": ["a", "b"]}
    name = d.one(*forms)
    return d.call([], **{name: forms[name]})


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node from names between blanks; ``-`` is an input that is left out."""
    given = ["" if one == "-" else one for one in inputs.split()]
    return helper.make_node(op, given, outputs.split(), **attributes)


__all__ = ["node", "number_of"]
