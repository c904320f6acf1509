"""Calls of matrix products, reductions and Einsum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuzzing.calls.draw import MICROSOFT, Array, Draw, Drawn, drawing


def _matrices(d: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that numpy's matmul takes, mostly."""
    inner = d.size()
    batch = d.shape(0, 2)
    a = (*batch, d.size(), inner) if d.chance(0.85) else (inner,)
    b = (*d.broadcast(batch), inner, d.size()) if d.chance(0.85) else (inner,)
    if d.chance(0.03):
        b = (*b[:-1], d.size())
    return a, b


@drawing("MatMul")
def matmul(d: Draw) -> Drawn:
    """Of vectors, matrices, batches."""
    a, b = _matrices(d)
    dtype = d.dtype("T")
    return d.call([d.tensor(dtype, a), d.tensor(dtype, b)])


@drawing("MatMulInteger")
@drawing("MatMulInteger16", domain=MICROSOFT)
def matmul_integer(d: Draw) -> Drawn:
    """Of integers, with zero points."""
    a, b = _matrices(d)
    dtype = "int16" if "16" in d.op else d.one("uint8", "int8")
    zeros = [d.tensor(dtype, ()) for _ in range(d.number(0, 2))] if d.op == "MatMulInteger" else []
    return d.call([d.tensor(dtype, a), d.tensor(dtype, b), *zeros])


def scale() -> Array:
    """A scale."""
    return np.array(0.5, np.float32)


@drawing("QLinearMatMul")
@drawing("QLinearMatMul", domain=MICROSOFT)
def quantized_matmul(d: Draw) -> Drawn:
    """Of bytes, with scales."""
    a, b = _matrices(d)
    zero = np.array(1, np.uint8)
    return d.call([d.tensor("uint8", a), scale(), zero, d.tensor("uint8", b), scale(), zero, scale(), zero])


def _gemm(d: Draw) -> tuple[tuple[int, int], tuple[int, int], tuple[int, ...] | None, dict[str, Any]]:
    m, k, n = d.size(), d.size(), d.size()
    turned = d.one(None, 0, 1), d.one(None, 0, 1)
    c = d.one((n,), (m, n), (1, n), (m, 1), (1,), (), (1, 1)) if d.chance(0.6) else None
    return (
        (k, m) if turned[0] else (m, k),
        (n, k) if turned[1] else (k, n),
        c,
        {"transA": turned[0], "transB": turned[1]},
    )


@drawing("Gemm")
def gemm(d: Draw) -> Drawn:
    """Turned operands, a C of every kind."""
    a, b, c, given = _gemm(d)
    dtype = d.dtype("T")
    if d.opset < 11 and c is None:
        c = b[:1] if given["transB"] else b[1:]
    if d.opset < 7:
        given["broadcast"] = 1
    return d.call([d.tensor(dtype, a), d.tensor(dtype, b), None if c is None else d.tensor(dtype, c)], **given)


@drawing("FusedGemm", domain=MICROSOFT)
def fused_gemm(d: Draw) -> Drawn:
    """With an activation."""
    a, b, c, given = _gemm(d)
    third = None if c is None else d.tensor("float", c)
    return d.call([d.tensor("float", a), d.tensor("float", b), third], **given, activation="Relu")


@drawing("QGemm", domain=MICROSOFT)
def quantized_gemm(d: Draw) -> Drawn:
    """To bytes or to float."""
    a, b, _, given = _gemm(d)
    zero = np.array(1, np.uint8)
    to = [scale(), zero] if d.chance(0.5) else []
    return d.call([d.tensor("uint8", a), scale(), zero, d.tensor("uint8", b), scale(), zero, None, *to], **given)


@drawing("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul(d: Draw) -> Drawn:
    """Matrices and batches turned."""
    # Batches in other places, of nothing, end the process.
    m, k, n, batch = d.size(zero=False), d.size(zero=False), d.size(zero=False), d.shape(0, 2, zero=False)
    given: dict[str, Any] = {"transA": d.one(None, 0, 1), "transB": d.one(None, 0, 1), "alpha": d.one(None, 2.0)}
    if d.op != "TransposeMatMul" and batch:
        given |= {"transBatchA": d.one(None, 0, 1), "transBatchB": d.one(None, 0, 1)}
    if d.op == "FusedMatMulActivation":
        given["activation"] = "Relu"
    shapes = []
    for matrix, side in (((m, k), "A"), ((k, n), "B")):
        rows, columns = matrix[::-1] if given[f"trans{side}"] else matrix
        turned = given.get(f"transBatch{side}")
        shapes.append((rows, *batch, columns) if turned else (*batch, rows, columns))
    if d.chance(0.1):
        shapes[d.number(0, 1)] = (k,)
    return d.call([d.tensor("float", one) for one in shapes], **given)


@drawing("MatMulNBits", domain=MICROSOFT)
def matmul_bits(d: Draw) -> Drawn:
    """Weights of four bits."""
    n, k, block = d.number(1, 5), d.one(16, 32, 40), d.one(16, 32)
    blocks = -(-k // block)
    weights = d.tensor("uint8", (n, blocks, block // 2))
    scales = d.tensor("float", (n, blocks) if d.chance(0.3) else (n * blocks,))
    return d.call([d.tensor("float", (*d.shape(1, 2), k)), weights, scales], K=k, N=n, bits=4, block_size=block)


@drawing("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(d: Draw) -> Drawn:
    """Weights of four bits of another kind."""
    n, k, block = d.number(1, 5), d.one(16, 32), 16
    weights = d.tensor("uint8", ((n * k + 1) // 2,))
    absmax = d.tensor("float", ((n * k + block - 1) // block,))
    return d.call([d.tensor("float", (*d.shape(1, 2), k)), weights, absmax], K=k, N=n, block_size=block, quant_type=1)


@drawing("MatMulFpQ4", domain=MICROSOFT)
def matmul_fpq4(d: Draw) -> Drawn:
    """Weights of four bits whose shape is an operand."""
    k, n = 32, d.number(1, 4)
    weights = d.tensor("uint8", (n * 20,))
    return d.call([d.tensor("float", (*d.shape(1, 2), k)), weights, d.ints([k, n])], blk_quant_type=0)


@drawing("MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=MICROSOFT)
def matmul_to_float(d: Draw) -> Drawn:
    """Of bytes to float."""
    a, b = _matrices(d)
    b = b[-2:]
    if d.op == "DynamicQuantizeMatMul":
        return d.call([d.tensor("float", a), d.tensor("uint8", b), scale()])
    return d.call([d.tensor("uint8", a), d.tensor("uint8", b), scale(), scale()])


@drawing(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
def reduce(d: Draw) -> Drawn:
    """Axes as an attribute and as an operand, none, all; over nothing too."""
    shape = d.shape(0, 4)
    axes = d.axes(len(shape)) if d.chance(0.7) else None
    keep = d.one(None, 0, 1)
    x = d.tensor(d.dtype("T", *(("int32", "int64") if d.chance(0.5) else ())), shape)
    if d.opset < (13 if d.op == "ReduceSum" else 18):
        return d.call([x], axes=axes or None, keepdims=keep)
    return d.call([x, None if axes is None else d.ints(axes)], keepdims=keep, noop_with_empty_axes=d.one(None, 0, 1))


@drawing("ArgMax", "ArgMin")
def arg_extremum(d: Draw) -> Drawn:
    """Along an axis, 0 where it is left out."""
    shape = d.shape(1, 4)
    last = d.one(None, 0, 1) if d.opset >= 12 else None
    axis = d.axis(len(shape)) if d.chance(0.8) else None
    return d.call([d.tensor(d.dtype("T"), shape)], axis=axis, keepdims=d.one(None, 0, 1), select_last_index=last)


@drawing("Einsum")
def einsum(d: Draw) -> Drawn:
    """Letters shared, repeated, broadcast where a dimension is 1; ellipses; results written out and not."""
    # With an ellipsis ONNX Runtime divides by a dimension of 0, which ends the process.
    dots = d.shape(0, 2, zero=False) if d.chance(0.35) else None
    sizes = {letter: d.size(zero=dots is None) for letter in "ijkL"}
    terms = ["".join(d.one(*sizes) for _ in range(d.number(0, 3))) for _ in range(d.number(1, 3))]
    if d.chance(0.7):  # a letter twice in a term is a diagonal
        terms = ["".join(dict.fromkeys(term)) for term in terms]
    written, operands = [], []
    dtype = d.dtype("T", "float", "int64", "double", "int32")
    for term in terms:
        shape = [1 if d.chance(0.15) else sizes[letter] for letter in term]
        text = term
        if dots is not None and d.chance(0.8):
            at = d.number(0, len(term))
            text = term[:at] + "..." + term[at:]
            # With ellipses of several ranks ONNX Runtime reads beyond the end and may end the process.
            shape[at:at] = [1 if d.chance(0.2) else dim for dim in dots]
        elif math.prod(shape) > 4096:
            shape = [1] * len(shape)
        written.append(text)
        operands.append(d.tensor(dtype, shape))
    letters = sorted(set("".join(terms)))
    kept = [letter for letter in letters if d.chance(0.6)]
    d.random.shuffle(kept)
    right = "".join(kept)
    if any("..." in text for text in written) and d.chance(0.9):
        at = d.number(0, len(right))
        right = right[:at] + "..." + right[at:]
    blank = d.one("", " ")
    equation = f"{blank},{blank}".join(written) + (f"{blank}->{blank}{right}" if d.chance(0.8) else "")
    return d.call(operands, equation=equation)
