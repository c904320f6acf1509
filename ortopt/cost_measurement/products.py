"""Products: merged, with transposed operands, with an activation or a bias inside, with weights of few bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from ortopt.analysis.costs import Form
from ortopt.cost_measurement.entries import (
    Entry,
    FormComparison,
    Given,
    cases,
    integers,
    normal,
    scalars,
    shape,
    weight,
)
from ortopt.semantics.domains import MICROSOFT

_BLOCK: Final = 32
_SHAPES: Final = cases(rows=(1, 16, 128), columns=(256, 256, 256), outputs=(256, 256, 256))


def _parts(given: Given) -> FormComparison:
    """The other way round: a product that is split."""
    forms = _siblings(given)
    return replace(forms, before=forms.after, after=forms.before)


def _siblings(given: Given) -> FormComparison:
    rows, columns, count = given["rows"], given["columns"], given.get("parts", 3)
    outputs = given["outputs"] // count
    parts = [weight(columns, outputs) * np.float32(1 + number) for number in range(count)]
    weights = {
        **{f"w{number}": part for number, part in enumerate(parts)},
        "w": np.concatenate(parts, axis=1),
        "s": shape(*[outputs] * count),
    }
    names = ", ".join(f"p{number}" for number in range(count))
    products = " ".join(f"p{number} = MatMul (x, w{number})" for number in range(count))
    before = f"{products} y = Sum ({names})"
    after = f"m = MatMul (x, w) {names} = Split <axis = 1> (m, s) y = Sum ({names})"
    return FormComparison({"x": normal(rows, columns)}, before, after, weights)


def _gemm(given: Given) -> FormComparison:
    rows, columns, outputs = given["rows"], given["columns"], given["outputs"]
    weights = {"w": weight(columns, outputs), "b": normal(outputs)}
    after = f'y = {MICROSOFT}.FusedGemm <activation = "Relu"> (x, w, b)'
    return FormComparison({"x": normal(rows, columns)}, "c = Gemm (x, w, b) y = Relu (c)", after, weights, repeats=True)


def _scaled(given: Given) -> FormComparison:
    """A scaled product with a transposed second operand, as scores of attention are."""
    batch, rows, columns = given["batch"], given["length"], given["columns"]
    inputs = {"x": normal(1, batch, rows, columns), "z": normal(1, batch, rows, columns)}
    before = "t = Transpose <perm = [0, 1, 3, 2]> (z) p = MatMul (x, t) y = Mul (p, k)"
    after = f"y = {MICROSOFT}.FusedMatMul <alpha = 0.125, transB = 1> (x, z)"
    return FormComparison(inputs, before, after, scalars(k=0.125))


def _transposed_first(given: Given) -> FormComparison:
    batch, rows, columns = given["batch"], given["length"], given["columns"]
    inputs = {"x": normal(batch, columns, rows), "z": normal(batch, columns, columns)}
    before = "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (t, z)"
    return FormComparison(inputs, before, f"y = {MICROSOFT}.FusedMatMul <transA = 1> (x, z)")


def _transposed_batch(given: Given) -> FormComparison:
    """Matrices that lie between rows, of the first operand or (``second``) of the other one."""
    batch, rows, columns = given["batch"], given["length"], given["columns"]
    if given.get("second"):
        inputs = {"x": normal(batch, rows, columns), "z": normal(columns, batch, columns)}
        before = "t = Transpose <perm = [1, 0, 2]> (z) y = MatMul (x, t)"
        return FormComparison(inputs, before, f"y = {MICROSOFT}.FusedMatMul <transBatchB = 1> (x, z)")
    inputs = {"x": normal(rows, batch, columns), "z": normal(batch, columns, columns)}
    before = "t = Transpose <perm = [1, 0, 2]> (x) y = MatMul (t, z)"
    return FormComparison(inputs, before, f"y = {MICROSOFT}.FusedMatMul <transBatchA = 1> (x, z)")


def _einsum(given: Given) -> FormComparison:
    batch, rows, columns = given["batch"], given["length"], given["columns"]
    inputs = {"x": normal(1, rows, batch, columns), "z": normal(1, rows, batch, columns)}
    before = """a = Transpose <perm = [0, 2, 1, 3]> (x) b = Transpose <perm = [0, 2, 3, 1]> (z) y = MatMul (a, b)"""
    return FormComparison(inputs, before, 'y = Einsum <equation = "bshd,bthd->bhst"> (x, z)')


def _few_bits(bits: int, *, unpacked: bool = False) -> Callable[[Given], FormComparison]:
    """A product with a weight of few bits in blocks, whose outputs are rows of the packed weight.

    Args:
        bits: How many.
        unpacked: Whether it stands for a weight of floats; else for one that is dequantized.
    """
    import ml_dtypes

    def build(given: Given) -> FormComparison:
        rows, columns, outputs = given["rows"], given["columns"], given["outputs"]
        blocks = columns // _BLOCK
        packed = integers(np.uint8, 0, 256, outputs, blocks, _BLOCK * bits // 8)
        halves = np.stack([packed & 15, packed >> 4], axis=-1) if bits == 4 else packed
        numbers, kind = halves.reshape(outputs, columns).T, ml_dtypes.uint4 if bits == 4 else np.uint8
        middle = 1 << (bits - 1)
        weights = {
            "q": packed,
            "s": np.full(outputs * blocks, 0.01, np.float32),
            "w": numbers.astype(kind),
            "s2": np.full((blocks, outputs), 0.01, np.float32),
            "z2": np.full((blocks, outputs), middle, np.uint8).astype(kind),
            "f": (numbers.astype(np.float32) - middle) * np.float32(0.01),
        }
        before = f"d = DequantizeLinear <axis = 0, block_size = {_BLOCK}> (w, s2, z2) y = MatMul (x, d)"
        attributes = f"K = {columns}, N = {outputs}, bits = {bits}, block_size = {_BLOCK}"
        after = f"y = {MICROSOFT}.MatMulNBits <{attributes}> (x, q, s)"
        before = "y = MatMul (x, f)" if unpacked else before
        return FormComparison({"x": normal(rows, columns)}, before, after, weights, opset=21)

    return build


def _conv(given: Given) -> FormComparison:
    channels, side = given["channels"], given["side"]
    weights = {"w": weight(channels, channels, 3, 3)}
    after = f'y = {MICROSOFT}.FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (x, w)'
    before = "c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Relu (c)"
    return FormComparison({"x": normal(1, channels, side, side)}, before, after, weights, repeats=True)


def _conv_with_sum(given: Given) -> FormComparison:
    channels, side = given["channels"], given["side"]
    weights = {"w": weight(channels, channels, 3, 3), "b": normal(channels)}
    conv = "Conv <pads = [1, 1, 1, 1]>"
    before = f"c = {conv} (x, w, b) d = {conv} (c, w, b) a = Add (d, c) r = Relu (a) y = {conv} (r, w, b)"
    fused = f'{MICROSOFT}.FusedConv <pads = [1, 1, 1, 1], activation = "Relu">'
    after = f"c = {conv} (x, w, b) r = {fused} (c, w, b, c) y = {conv} (r, w, b)"
    return FormComparison({"x": normal(1, channels, side, side)}, before, after, weights)


_IMAGES: Final = cases(channels=(16, 32, 64), side=(56, 28, 14))
_MATRICES: Final = cases(batch=(4, 12, 12, 12), length=(16, 16, 128, 512), columns=(64, 64, 64, 64))
_NBITS: Final = cases(rows=(1, 16, 128, 1), columns=(64, 256, 256, 1024), outputs=(64, 256, 256, 1024))

ENTRIES: Final = (
    Entry(
        Form("", "MatMul", "merged with siblings"),
        "one MatMul for each part",
        _siblings,
        cases(
            rows=(1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 16, 128),
            columns=(64, 64, 768, 768, 384, 768, 256, 768, 512, 256, 256, 768),
            outputs=(128, 192, 128, 192, 768, 1536, 768, 2304, 6144, 768, 768, 2304),
            parts=(2, 3, 2, 3, 2, 2, 3, 3, 3, 3, 3, 3),
        ),
    ),
    Entry(
        Form("", "MatMul", "one for each part"),
        "one MatMul and a Split",
        _parts,
        cases(rows=(1, 8, 16, 128, 197), columns=(384, 384, 384, 768, 768), outputs=(384, 1152, 1152, 2304, 2304)),
    ),
    Entry(Form(MICROSOFT, "FusedGemm"), "Gemm and its activation", _gemm, _SHAPES, as_loaded=True),
    Entry(Form(MICROSOFT, "FusedMatMul"), "Mul or Transpose, and MatMul", _scaled, _MATRICES),
    Entry(
        Form(MICROSOFT, "FusedMatMul", "transA"),
        "Transpose and MatMul",
        _transposed_first,
        cases(batch=(1, 1, 12, 12, 12), length=(1, 128, 16, 128, 512), columns=(64, 256, 64, 64, 64)),
    ),
    Entry(
        Form(MICROSOFT, "FusedMatMul", "transBatch"),
        "Transpose and MatMul",
        _transposed_batch,
        (*_MATRICES, *({**given, "second": 1} for given in _MATRICES)),
    ),
    Entry(Form("", "Einsum"), "MatMul and Transposes", _einsum, _MATRICES),
    Entry(Form(MICROSOFT, "MatMulNBits"), "DequantizeLinear of the whole weight and a product", _few_bits(4), _NBITS),
    Entry(
        Form(MICROSOFT, "MatMulNBits", "instead of ONNX Runtime's own"),
        "DequantizeLinear and MatMul, of which ONNX Runtime makes the same kernel with activations of 8 bits when it"
        " loads a model",
        _few_bits(4),
        _NBITS,
        as_loaded=True,
    ),
    Entry(
        Form(MICROSOFT, "MatMulNBits", "of 8 bits"),
        "DequantizeLinear of the whole weight and a product",
        _few_bits(8),
        _NBITS,
    ),
    Entry(
        Form(MICROSOFT, "MatMulNBits", "instead of floats"),
        "the floats, which ONNX Runtime computes when it loads a model",
        _few_bits(4, unpacked=True),
        _NBITS,
        as_loaded=True,
    ),
    Entry(Form(MICROSOFT, "FusedConv"), "Conv and its activation", _conv, _IMAGES, as_loaded=True),
    Entry(
        Form(MICROSOFT, "FusedConv", "with a sum"),
        "Conv, Add and an activation",
        _conv_with_sum,
        _IMAGES,
        as_loaded=True,
    ),
)
"""What is measured of products and convolutions."""

__all__ = ["ENTRIES"]
