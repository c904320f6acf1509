"""Single ops with rules of their own: of triangles, positions, text and chance."""

from __future__ import annotations

import numpy as np

from fuzzing.families.registry import family
from fuzzing.families.reshaping import dimensions
from fuzzing.writer import BOOL, F32, F64, FLOATS, I64, STRING, Writer


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
    names = dict(zip(terms[0], dimensions(x), strict=True))
    operands = [x, *(w.like(x) for _ in terms[1:])]
    for term, operand in zip(terms, operands, strict=True):
        names.update(zip(term, dimensions(operand), strict=True))
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
