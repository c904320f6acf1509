"""Matrix products with what passes merge into them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fuzzing.families.movement import transpose
from fuzzing.families.normalizations import batch_normalization
from fuzzing.families.reshaping import reshape
from fuzzing.patterns.operands import constant_number, features, fits
from fuzzing.patterns.registry import plant
from fuzzing.writer import BOOL, F32, F64, I32, Value, Writer


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
    w.require(fits(y, bias))
    y = w.either("Add", y, bias)
    if w.chance(0.3):
        w.add("Relu", [y])


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
    x = features(w, (F32, F32, F64))
    a, b = w.noise((x.shape[-1], w.one(1, 3)), x.dtype, 0.5), w.one(2, 4)
    y = w.add("MatMul", [x, a], (*x.shape[:-1], a.shape[1]), (*x.varies[:-1], False), show=w.chance(0.1))
    if w.chance(0.4):
        y = w.either("Mul", y, w.noise(w.usual((), (a.shape[1],)), x.dtype), show=w.chance(0.1))
    w.add("MatMul", [y, w.noise((a.shape[1], b), x.dtype, 0.5)], (*x.shape[:-1], b), (*x.varies[:-1], False))


@plant
def _siblings(w: Writer) -> None:
    """Several products of one input, as of queries, keys and values."""
    x = features(w, (F32, F32, F64))
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
def _attention(w: Writer) -> None:
    """Softmax(Q·Kᵀ·scale + mask)·V in heads, in its spellings."""
    x = w.pick((F32, F32, F32, F64), (3,), lambda one: not one.varies[-1] and one.size > 0)
    heads, size = w.one(1, 2), w.one(2, 4)
    other = w.usual(x, w.like(x))
    q, v = _heads(w, x, heads, size, (0, 2, 1, 3)), _heads(w, other, heads, size, (0, 2, 1, 3))
    if w.chance(0.6):
        k = _heads(w, other, heads, size, (0, 2, 3, 1))
    else:
        k = transpose(w, _heads(w, other, heads, size, (0, 2, 1, 3)), (0, 1, 3, 2), show=False)
    scale, place = 1 / math.sqrt(size), w.random.randrange(4)
    if place == 1:
        q = w.either("Mul", q, constant_number(w, scale, q), show=False)
    elif place == 2:
        q = w.either("Mul", q, constant_number(w, scale**0.5, q), show=False)
        k = w.either("Mul", k, constant_number(w, scale**0.5, k), show=False)
    batch, length = x.shape[:2]
    scores = w.add("MatMul", [q, k], (batch, heads, length, length), (x.varies[0], False, x.varies[1], x.varies[1]),
                   show=False)  # fmt: skip
    if place == 0:
        scores = w.elementwise("Div", scores, constant_number(w, 1 / scale, scores), show=False)
    if w.chance(0.5):
        scores = _masked(w, scores, x, heads)
    p = w.add("Softmax", [scores], show=w.chance(0.05), axis=w.usual(-1, 3, 2, odds=0.7))
    if w.chance(0.15):
        nan = w.add("IsNaN", [p], dtype=BOOL, show=False)
        p = w.add("Where", [nan, w.scalar(0.0, p, rank=0), p], p.shape, p.varies, dtype=p.dtype, show=False)
    y = _merged_heads(w, w.add("MatMul", [p, v], q.shape, q.varies, show=False))
    if w.chance(0.6):
        w.add("MatMul", [y, w.noise((y.shape[-1], 4), x.dtype, 0.5)], (*y.shape[:2], 4), y.varies)


def _heads(w: Writer, x: Value, heads: int, size: int, perm: Sequence[int]) -> Value:
    """A projection of queries, keys or values, split into heads."""
    hidden, dims, varies = heads * size, x.shape[:2], x.varies[:2]
    y = w.add("MatMul", [x, w.noise((x.shape[-1], hidden), x.dtype, 0.5)], (*dims, hidden), (*varies, False),
              show=False)  # fmt: skip
    if w.chance(0.6):
        y = w.either("Add", y, w.noise((hidden,), x.dtype), show=w.chance(0.04))
    if w.chance(0.4) or all(varies):
        target = w.add("Concat", [w.dim(x, 0), w.dim(x, 1), w.ints(heads, size)], (4,), show=False, axis=0)
    else:
        target = w.ints(0, 0, heads, size)
    y = w.add("Reshape", [y, target], (*dims, heads, size), (*varies, False, False), show=False)
    return transpose(w, y, perm, show=w.chance(0.04))


def _masked(w: Writer, scores: Value, x: Value, heads: int) -> Value:
    """The scores of an input's rows with a mask: added, or applied by a Where."""
    length = x.shape[1]
    mask_dims: list[tuple[int, ...]] = [(1, 1, 1, 1), (1, heads, 1, 1)]
    if not x.varies[1]:
        mask_dims += [(1, 1, length, length), (length, length), (1, 1, 1, length)]
    mask = w.noise(w.one(*mask_dims), scores.dtype)
    if w.chance(0.3):
        allowed = w.elementwise("Greater", mask, w.scalar(0.0, mask, rank=0), dtype=BOOL, show=False)
        shape = np.broadcast_shapes(allowed.shape, scores.shape)
        low = w.scalar(w.one(-1e4, -np.inf, -3.4e38), scores, rank=0)
        return w.add("Where", [allowed, scores, low], shape, scores.varies, dtype=scores.dtype, show=False)
    return w.either("Add", scores, mask, show=False)


def _merged_heads(w: Writer, y: Value) -> Value:
    """The heads of a result side by side again."""
    y = transpose(w, y, w.usual((0, 2, 1, 3), (0, 1, 2, 3), odds=0.95), show=False)
    hidden = y.shape[2] * y.shape[3]
    if not any(y.varies[:2]) or w.chance(0.5):
        target = w.add("Concat", [w.dim(y, 0), w.dim(y, 1), w.ints(hidden)], (3,), show=False, axis=0)
    else:
        target = w.ints(0, 0, hidden)
    return w.add("Reshape", [y, target], (*y.shape[:2], hidden), (*y.varies[:2], False))


@plant
def _rotary(w: Writer) -> None:
    """What becomes RotaryEmbedding: whole heads or their first elements, halves or neighbours."""
    x = w.pick((F32, F32, F64), (3, 4), lambda one: not one.varies[-1] and one.shape[-1] % 2 == 0 and one.size > 0)
    n = x.shape[-1]
    if n < 4 or w.chance(0.7):
        _turned(w, x)
        return
    first = n // 4 * 2
    results = [(x.dtype, (*x.shape[:-1], size), x.varies) for size in (first, n - first)]
    head, rest = w.node("Split", [x, w.ints(first, n - first)], results, axis=-1)
    parts = [_turned(w, head), rest]
    w.add("Concat", parts if w.chance(0.7) else parts[::-1], x.shape, x.varies, axis=-1)


def _turned(w: Writer, x: Value) -> Value:
    n, neighbours = x.shape[-1], w.chance(0.4)
    half = n // 2
    if neighbours:
        bounds = [w.ints(2**63 - 1), w.ints(-1), w.ints(2)]
        shape = (*x.shape[:-1], half)
        a, b = (w.add("Slice", [x, w.ints(start), *bounds], shape, x.varies, show=False) for start in (0, 1))
    elif w.chance(0.5):
        cut = w.usual(half, 1)
        a = w.add("Slice", [x, w.ints(0), w.ints(cut), w.ints(-1)], (*x.shape[:-1], cut), x.varies, show=False)
        b = w.add(
            "Slice", [x, w.ints(cut), w.ints(2**63 - 1), w.ints(-1)], (*x.shape[:-1], n - cut), x.varies, show=False
        )
    else:
        results = [(x.dtype, (*x.shape[:-1], half), x.varies)] * 2
        a, b = w.node("Split", [x, w.ints(half, half)], results, axis=-1)
    parts = [w.add("Neg", [b], show=False), a]
    parts = parts if w.chance(0.95) else parts[::-1]
    turned = _interleaved(w, parts, x) if neighbours else w.add("Concat", parts, x.shape, x.varies, show=False, axis=-1)
    cos, sin = (_table(w, x, neighbours=neighbours) for _ in range(2))
    return w.either("Add", w.either("Mul", x, cos, show=False), w.either("Mul", turned, sin, show=False))


def _interleaved(w: Writer, parts: Sequence[Value], x: Value) -> Value:
    """The elements of two values by turns, in the shape of another."""
    around, half, single = x.shape[:-1], x.shape[-1] // 2, (*x.varies, False)
    copied = [0] * len(around)
    columns = [w.add("Reshape", [v, w.ints(*copied, half, 1)], (*around, half, 1), single, show=False) for v in parts]
    pairs = w.add("Concat", columns, (*around, half, 2), single, show=False, axis=-1)
    return w.add("Reshape", [pairs, w.ints(*copied, 2 * half)], x.shape, x.varies, show=False)


def _table(w: Writer, x: Value, *, neighbours: bool) -> Value:
    """Cosines or sines for each position, mostly the same for both elements of a pair."""
    length, n = 1 if x.varies[-2] else x.shape[-2], x.shape[-1]
    if w.chance(0.1):
        return w.noise((length, n), x.dtype)
    table = w.noise((length, n // 2), x.dtype)
    if neighbours:
        repeated = w.ints(*np.repeat(np.arange(n // 2), 2).tolist())
        return w.add("Gather", [table, repeated], (length, n), (False, False), show=False, axis=-1)
    return w.add("Concat", [table, table], (length, n), (False, False), show=False, axis=-1)


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
