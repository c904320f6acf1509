"""MatMul and Gemm."""

from __future__ import annotations

from fuzzing.families.elementwise import chain
from fuzzing.families.normalizations import batch_normalization
from fuzzing.families.registry import family
from fuzzing.writer import F32, F64, I32, Attributes, Value, Writer


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
