"""Transposes move through ops to where they cancel, and stay where that would need as many."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph import scope
from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "transpose_optimizer"

DOWN = "Transpose<perm = [0, 3, 1, 2]>"
BACK = "Transpose<perm = [0, 2, 3, 1]>"


def around(body: str, initializers: str = "", *, x: str = "float[2,4,5,3]", y: str = "float[2,4,5,3]", more: str = "") -> str:
    """A graph in which ``b`` is computed from ``a``, the transposed x, and transposed back."""
    return f"main ({x} x{more}) => ({y} y) {initializers} {{ a = {DOWN} (x) {body} y = {BACK} (b) }}"


SAME_SHAPE = {
    "unary": ("b = Relu (a)", ""),
    "cast": ("h = Cast<to = 11> (a) b = Cast<to = 1> (h)", ""),
    "clip": ("b = Clip (a, low, high)", "<float low = {-0.5}, float high = {0.5}>"),
    "dropout": ("b = Dropout (a)", ""),
    "leaky": ("b = LeakyRelu<alpha = 0.1> (a)", ""),
    "itself": ("b = Mul (a, a)", ""),
    "scalar": ("b = Add (a, c)", "<float c = {2}>"),
    "one element": ("b = Add (c, a)", "<float[1] c = {2}>"),
    "channel": ("b = Mul (a, c)", "<float[3,1,1] c = {1,2,3}>"),
    "row": ("b = Add (a, c)", "<float[5] c = {1,2,3,4,5}>"),
    "full": ("b = Sub (c, a)", "<float[1,3,1,5] c = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}>"),
    "where": ("m = Greater (a, c) b = Where (m, a, c)", "<float[3,1,1] c = {0.1,0.2,0.3}>"),
    "sum": ("r = Relu (a) b = Sum (a, r, c)", "<float[3,1,1] c = {0.1,0.2,0.3}>"),
    "prelu": ("b = PRelu (a, c)", "<float[3,1,1] c = {0.1,0.2,0.3}>"),
    "reduce kept": ("s = ReduceMax<axes = [1]> (a) b = Sub (a, s)", ""),
    "reduce all": ("s = ReduceSum (a) b = Sub (a, s)", ""),
    "reduce by input": ("s = ReduceSum (a, k) b = Sub (a, s)", "<int64[2] k = {-1, 2}>"),
    "softmax": ("b = Softmax<axis = 1> (a)", ""),
    "log softmax": ("b = LogSoftmax (a)", ""),
    "concat": ("r = Neg (a) c = Concat<axis = 1> (a, r) b, d = Split<axis = 1> (c)", ""),
    "split": ("p, q, r = Split<axis = -3> (a) b = Concat<axis = 1> (r, p, q)", ""),
    "slice": ("s = Slice (a, from, to, k) b = Add (a, s)", "<int64[1] from = {1}, int64[1] to = {2}, int64[1] k = {1}>"),
    "slice first": ("s = Slice (a, from, to) b = Add (a, s)", "<int64[2] from = {0, 1}, int64[2] to = {9, 2}>"),
    "slice back": (
        "b = Slice (a, from, to, k, step)",
        "<int64[2] from = {-1, -1}, int64[2] to = {-99, -99}, int64[2] k = {-1, 1}, int64[2] step = {-1, -1}>",
    ),
    "gather one": ("b = Gather<axis = 1> (a, k)", "<int64[3] k = {2, -1, 0}>"),
    "gather elements": ("b = GatherElements<axis = 1> (a, k)", "<int64[2,3,4,5] k>"),
    "expand": ("b = Expand (a, k)", "<int64[4] k = {2, 3, 4, 5}>"),
    "tile": ("b = Tile (a, k)", "<int64[4] k = {1, 1, 1, 1}>"),
    "arg max": ("s = ArgMax<axis = 1> (a) f = Cast<to = 1> (s) b = Mul (a, f)", ""),
    "cumulative sum": ("b = CumSum<reverse = 1> (a, k)", "<int64 k = {1}>"),
    "top": ("b, i = TopK<axis = 1> (a, k)", "<int64[1] k = {3}>"),
    "norm": ("b = LpNormalization<axis = 1, p = 2> (a)", ""),
    "quantize": ("q = QuantizeLinear (a, s, z) b = DequantizeLinear (q, s, z)", "<float s = {0.1}, uint8 z = {128}>"),
    "quantize axis": (
        "q = QuantizeLinear<axis = 1> (a, s, z) b = DequantizeLinear<axis = -3> (q, s, z)",
        "<float[3] s = {0.1, 0.2, 0.3}, int8[3] z = {0, 1, 2}>",
    ),
    "dynamic quantize": ("q, s, z = DynamicQuantizeLinear (a) b = DequantizeLinear (q, s, z)", ""),
    "reshape": ("s = Reshape (a, k) r = Relu (s) b = Reshape (r, l)", "<int64[3] k = {2, 3, 20}, int64[4] l = {2, 3, 4, 5}>"),
    "flatten": ("s = Flatten<axis = 2> (a) r = Relu (s) b = Reshape (r, l)", "<int64[4] l = {2, 3, 4, 5}>"),
    "unsqueeze": ("s = Unsqueeze (a, k) r = Relu (s) b = Squeeze (r, k)", "<int64[1] k = {2}>"),
    "unsqueeze two": ("s = Unsqueeze (a, k) r = Relu (s) b = Squeeze (r, k)", "<int64[2] k = {-1, 0}>"),
    "shape": ("s = Shape (a) e = ConstantOfShape (s) b = Add (a, a)", ""),
    "size": ("s = Size (a) f = Cast<to = 1> (s) b = Add (a, f)", ""),
    "instance norm of rows": (
        "p = Transpose<perm = [0, 1, 3, 2]> (a) i = InstanceNormalization (p, s, s) b = Transpose<perm = [0, 1, 3, 2]> (i)",
        "<float[3] s = {1, 2, 3}>",
    ),
    "identity": ("b = Identity (a)", ""),
    "matmul batch": ("c = MatMul (a, w) d = Relu (c) b = Slice (d, from, to, k)", ""),
}
SAME_SHAPE["gather elements"] = ("i = ArgMin<axis = 1> (a) b0 = GatherElements<axis = 1> (a, i) b = Add (a, b0)", "")
del SAME_SHAPE["matmul batch"], SAME_SHAPE["instance norm of rows"], SAME_SHAPE["shape"]


@pytest.mark.parametrize("name", SAME_SHAPE)
def test_passes(name: str) -> None:
    body, initializers = SAME_SHAPE[name]
    check_rewrites(PASS, around(body, initializers), ops={"Transpose": 0})


def test_dynamic() -> None:
    check_rewrites(PASS, around("b = Relu (a)", x="float[N,H,W,3]", y="float[N,H,W,3]"), "y = Relu (x)")
