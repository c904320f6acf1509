"""Attention blocks as exporters spell them: heads, groups, scales, masks, past, guards, rotary embeddings, layouts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fuzzing.families.movement import transpose
from fuzzing.patterns.operands import constant_number
from fuzzing.patterns.registry import plant
from fuzzing.writer import BOOL, F16, F32, F64, I64, Attributes, Size, Value, Writer

_ROWS = (0, 2, 1, 3)
_LOWEST: dict[int, float] = {F16: -65504.0, F32: float(np.finfo(np.float32).min), F64: float(np.finfo(np.float64).min)}


@dataclass(frozen=True)
class _Block:
    """What one block is.

    Attributes:
        heads: How many heads of queries there are.
        groups: How many of keys and values.
        size: Elements of a head of queries and keys.
        value_size: Elements of a head of values.
        causal: Whether queries see the keys of later positions.
        past: Whether keys and values of earlier positions come before the new ones.
    """

    heads: int
    groups: int
    size: int
    value_size: int
    causal: bool
    past: bool


@plant
def attention_block(w: Writer) -> None:
    """A whole block; now and then a condition is broken."""
    w.require(w.parent is None and not w.body and len(w.sheet.inputs) < 4)
    block = _drawn(w)
    x, other = _sources(w, block)
    q = _split(w, x, block.heads, block.size)
    k, v = (_split(w, other, block.groups, size) for size in (block.size, block.value_size))
    if x.dtype != F16 and not x.varies[1] and block.size % 2 == 0 and w.chance(0.25):
        q, k = _turned(w, q, k)
    if block.past:
        k, v = _with_past(w, k), _with_past(w, v)
    if block.groups != block.heads:
        k, v = _repeated(w, k, block.heads), _repeated(w, v, block.heads)
    scores = _scores(w, q, k, block)
    p = _probabilities(w, _masked(w, scores, block), scores.dtype)
    c = w.add("MatMul", [p, v], (*p.shape[:3], v.shape[3]), (p.varies[0], False, p.varies[2], False), show=False)
    _joined(w, c)


def _drawn(w: Writer) -> _Block:
    heads = w.one(1, 2, 4)
    groups = w.one(*(count for count in (1, 2, 4) if heads % count == 0))
    size = w.one(2, 4, 8, 8)
    return _Block(
        heads,
        heads if w.chance(0.5) else groups,
        size,
        w.usual(size, 2 * size, odds=0.9),
        w.chance(0.3),
        w.chance(0.3),
    )


def _sources(w: Writer, block: _Block) -> tuple[Value, Value]:
    """What queries come from, and keys and values: one value, mostly."""
    dtype = w.one(F32, F32, F32, F32, F32, F32, F32, F16, F16, F64)
    batch, width = w.size("N", 1, 2, 2), w.one(4, 8)
    x = w.input(dtype, [batch, w.size("S", 1, 3, 3), width])
    if block.past or block.causal or w.chance(0.75):
        return x, x
    return x, w.input(dtype, [batch, w.size("S", 4, 5), width])


def _split(w: Writer, x: Value, heads: int, size: int) -> Value:
    """A projection [batch, heads, length, size]."""
    width, varies = heads * size, (*x.varies[:2], False)
    y = w.add("MatMul", [x, w.noise((x.shape[2], width), x.dtype, 0.5)], (*x.shape[:2], width), varies, show=False)
    if w.chance(0.5):
        y = w.either("Add", y, w.noise((width,), x.dtype), show=False)
    if all(varies[:2]) and w.chance(0.5):
        target = w.add("Concat", [w.dim(x, 0), w.dim(x, 1), w.ints(heads, size)], (4,), show=False, axis=0)
    else:
        target = w.ints(0, 0, heads, size) if w.chance(0.6) or not x.varies[1] else w.ints(0, -1, heads, size)
    shape = (*x.shape[:2], heads, size)
    y = w.add("Reshape", [y, target], shape, (*varies[:2], False, False), show=False)
    return transpose(w, y, w.usual(_ROWS, (0, 1, 2, 3) if heads == x.shape[1] else _ROWS, odds=0.98), show=False)


def _turned(w: Writer, q: Value, k: Value) -> tuple[Value, Value]:
    """Queries and keys with a rotary embedding."""
    w.require(q.shape[2:] == k.shape[2:])
    length, size = q.shape[2:]
    half = w.sheet.numbers.standard_normal((1, 1, length, size // 2)) * 2
    angles = np.concatenate([half, half], axis=-1)
    tables = [w.constant(np.round(table, 4), q.dtype) for table in (np.cos(angles), np.sin(angles))]
    return _rotated(w, q, tables), _rotated(w, k, tables)


def _rotated(w: Writer, x: Value, tables: list[Value]) -> Value:
    half = x.shape[3] // 2
    shape = (*x.shape[:3], half)
    first = w.add("Slice", [x, w.ints(0), w.ints(half), w.ints(3)], shape, x.varies, show=False)
    last = w.add("Slice", [x, w.ints(half), w.ints(2**63 - 1), w.ints(3)], shape, x.varies, show=False)
    parts = [w.add("Neg", [last], show=False), first]
    turned = w.add("Concat", parts, x.shape, x.varies, show=False, axis=-1)
    cosines, sines = tables
    return w.elementwise(
        "Add", w.either("Mul", x, cosines, show=False), w.either("Mul", turned, sines, show=False), show=False
    )


def _with_past(w: Writer, x: Value) -> Value:
    """Keys or values behind those of earlier positions, which may be none; all together are a result of the model."""
    batch = next(
        (one.symbols[0] for one in w.sheet.inputs if one.value.varies[:1] == (True,)), None
    )  # a batch that varies has one name only
    first = batch if x.varies[0] and batch is not None else x.shape[0]
    past = w.input(x.dtype, [first, x.shape[1], w.size("Z", "Z", 2, 0), x.shape[3]])
    length, varies = past.shape[2] + x.shape[2], past.varies[2] or x.varies[2]
    shape, each = (x.shape[0], x.shape[1], length, x.shape[3]), (x.varies[0], False, varies, False)
    return w.add("Concat", [past, x], shape, each, show=True, axis=w.one(2, -2))


def _repeated(w: Writer, x: Value, heads: int) -> Value:
    """Heads of keys or values, each for its group of query heads."""
    batch, count, length, size = x.shape
    group = heads // count
    varies = (x.varies[0], False, False, x.varies[2], False)
    axes = [w.ints(2)] if w.opset >= 13 else []
    one = w.add("Unsqueeze", [x, *axes], (batch, count, 1, length, size), varies, show=False)
    dims = [w.dim(x, 0), w.ints(count, group), w.dim(x, 2), w.ints(size)]
    wide = (batch, count, group, length, size)
    if w.chance(0.7):
        target = w.add("Concat", dims, (5,), show=False, axis=0)
        many = w.add("Expand", [one, target], wide, varies, show=False)
    else:
        many = w.add("Tile", [one, w.ints(1, 1, group, 1, 1)], wide, varies, show=False)
    joint = w.add("Concat", [dims[0], w.ints(heads), dims[2], w.ints(size)], (4,), show=False, axis=0)
    exact: Attributes = {"allowzero": 1} if w.opset >= 14 and w.chance(0.5) else {}
    shape, each = (batch, heads, length, size), (x.varies[0], False, x.varies[2], False)
    return w.add("Reshape", [many, joint], shape, each, show=False, **exact)


def _scores(w: Writer, q: Value, k: Value, block: _Block) -> Value:
    """The scaled products, with the scale on any side."""
    scale, place = 1 / math.sqrt(block.size), w.random.randrange(5)
    t = transpose(w, k, (0, 1, 3, 2), show=False)
    if place == 1:
        q = w.either("Mul", q, constant_number(w, scale, q), show=False)
    elif place == 2:
        q, t = (w.either("Mul", one, constant_number(w, scale**0.5, one), show=False) for one in (q, t))
    shape, varies = (*q.shape[:3], t.shape[3]), (q.varies[0], False, q.varies[2], t.varies[3])
    w.require(q.rank == 4 and t.rank == 4)
    scores = w.add("MatMul", [q, t], shape, varies, show=w.chance(0.03))
    if place == 3:
        scores = w.either("Mul", scores, constant_number(w, scale, scores), show=False)
    elif place == 4:
        scores = w.elementwise("Div", scores, constant_number(w, 1 / scale, scores), show=False)
    w.require(scores.rank == 4)
    return scores


def _masked(w: Writer, scores: Value, block: _Block) -> Value:
    """The scores with none, one or two masks."""
    for _ in range(w.one(0, 1, 1, 2)):
        kind = w.one("added", "boolean", "where", "padding")
        if kind == "added":
            mask = _drawn_mask(w, scores, scores.dtype)
            scores = w.either("Add", scores, mask, show=False)
        elif kind == "where":
            allowed = _drawn_mask(w, scores, BOOL)
            scores = w.add("Where", [allowed, scores, _low(w, scores)], scores.shape, scores.varies,
                           dtype=scores.dtype, show=False)  # fmt: skip
        else:
            allowed = _drawn_mask(w, scores, BOOL) if kind == "boolean" else _padding(w, scores)
            zero = w.constant(np.float64(0), scores.dtype)
            bias = w.add("Where", [allowed, zero, _low(w, scores)], allowed.shape, allowed.varies,
                         dtype=scores.dtype, show=False)  # fmt: skip
            scores = w.either("Add", scores, bias, show=False)
    return _causal(w, scores) if block.causal else scores


def _low(w: Writer, scores: Value) -> Value:
    """What stands where nothing is to be seen; beside -1e4 a row without any key would be noise."""
    numbers = (-100.0, -np.inf, _LOWEST[scores.dtype])
    return w.constant(np.float64(w.one(*numbers)), scores.dtype)


def _drawn_mask(w: Writer, scores: Value, dtype: int) -> Value:
    """A mask of any shape that broadcasts: a constant, or an input."""
    batch, heads, rows, keys = scores.shape
    behind = any(one.symbols[2:3] == ("Z",) for one in w.sheet.inputs)  # keys of a past whose length varies
    w.require(not scores.varies[3] or (not behind and rows == keys))
    n, s, t = ("N" if scores.varies[0] else batch, *("S" if scores.varies[i] else scores.shape[i] for i in (2, 3)))
    shapes: list[tuple[Size, ...]] = [
        *((t,), (1, 1, 1, t), (s, t), (1, 1, s, t), (1, heads, s, t)),
        *((n, 1, 1, t), (n, 1, s, t), (n, heads, s, t), (n, 1, s, t)),
    ]
    dims = w.one(*shapes)
    fixed = tuple(dim for dim in dims if isinstance(dim, int))
    if len(fixed) == len(dims) and (w.chance(0.4) or len(w.sheet.inputs) > 5):
        return w.noise(fixed, dtype)
    return w.input(dtype, dims)


def _padding(w: Writer, scores: Value) -> Value:
    """Which keys are there, from an input of ones and zeros [batch, keys]."""
    w.require(not scores.varies[0] and not scores.varies[3] and len(w.sheet.inputs) < 6)
    ones = w.input(I64, [scores.shape[0], scores.shape[3]], limit=2)
    there = w.elementwise("Greater", ones, w.constant(np.int64(0)), dtype=BOOL, show=False)
    shape = (scores.shape[0], 1, 1, scores.shape[3])
    return w.add("Unsqueeze", [there, w.ints(1, 2)], shape, (False,) * 4, dtype=BOOL, show=False)


def _causal(w: Writer, scores: Value) -> Value:
    """The scores without keys of later positions: by a constant triangle, or by a comparison of ranges."""
    rows, keys = scores.shape[2:]
    low = _low(w, scores)
    varies = scores.varies[2] or scores.varies[3]
    if not varies and w.chance(0.6):
        triangle = np.tri(rows, keys, keys - rows + w.usual(0, 1, -1, odds=0.9), dtype=bool)
        bias = w.constant(np.where(triangle, 0.0, w.one(-np.inf, _LOWEST[scores.dtype], -100.0)), scores.dtype)
        return w.either("Add", scores, bias, show=False)
    zero, one = w.constant(np.int64(0)), w.constant(np.int64(1))
    counts = [w.add("Squeeze", [w.dim(value, axis)], (), (), show=False) for value, axis in ((scores, 2), (scores, 3))]
    first = w.elementwise("Sub", counts[1], counts[0], show=False)
    lines = [
        w.add("Range", [start, counts[1], one], (count,), (vary,), dtype=I64, show=False)
        for start, count, vary in ((first, rows, scores.varies[2]), (zero, keys, scores.varies[3]))
    ]
    down = w.add("Unsqueeze", [lines[0], w.ints(1)], (rows, 1), (scores.varies[2], False), show=False)
    if w.opset >= 16:
        seen = w.elementwise("LessOrEqual", lines[1], down, dtype=BOOL, show=False)
    else:
        later = w.elementwise("Greater", lines[1], down, dtype=BOOL, show=False)
        seen = w.add("Not", [later], show=False)
    if w.chance(0.5):
        return w.add("Where", [seen, scores, low], scores.shape, scores.varies, dtype=scores.dtype, show=False)
    zeros = w.constant(np.float64(0), scores.dtype)
    bias = w.add("Where", [seen, zeros, low], seen.shape, seen.varies, dtype=scores.dtype, show=False)
    return w.either("Add", scores, bias, show=False)


def _probabilities(w: Writer, scores: Value, dtype: int) -> Value:
    """The softmax, perhaps in single precision, perhaps with a guard against rows without any key."""
    cast = dtype == F16 and w.chance(0.3)
    if cast:
        scores = w.add("Cast", [scores], dtype=F32, to=F32, show=False)
    p = w.add("Softmax", [scores], show=w.chance(0.03), axis=w.usual(w.one(-1, 3), 2, odds=0.97))
    if w.chance(0.25):
        nan = w.add("IsNaN", [p], dtype=BOOL, show=False)
        p = w.add("Where", [nan, w.constant(np.float64(0), p.dtype), p], p.shape, p.varies, dtype=p.dtype, show=False)
    return w.add("Cast", [p], dtype=dtype, to=dtype, show=False) if cast else p


def _joined(w: Writer, c: Value) -> None:
    """The heads side by side again, as far as they are wanted so."""
    if w.chance(0.05):
        w.show(c)
        return
    y = transpose(w, c, w.usual(_ROWS, (0, 1, 2, 3), odds=0.97), show=w.chance(0.05))
    width = y.shape[2] * y.shape[3]
    w.require(not y.varies[2] and not y.varies[3])
    target = w.ints(0, 0, width)
    if w.chance(0.4):
        target = w.add("Concat", [w.dim(y, 0), w.dim(y, 1), w.ints(width)], (3,), show=False, axis=0)
    y = w.add("Reshape", [y, target], (*y.shape[:2], width), (*y.varies[:2], False))
    if w.chance(0.4):
        w.add("MatMul", [y, w.noise((width, 4), y.dtype, 0.5)], (*y.shape[:2], 4), y.varies)
