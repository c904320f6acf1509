"""Each op that transposes pass: a Transpose above it and its inverse below cancel, and the numbers stay."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps
from tests.transpose.numbers import check_count

DOWN = "Transpose<perm = [0, 3, 1, 2]>"
BACK = "Transpose<perm = [0, 2, 3, 1]>"

UNDONE = {
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
    "log softmax": ("b = LogSoftmax<axis = 2> (a)", ""),
    "concat": ("r = Neg (a) c = Concat<axis = 1> (a, r) b, d = Split<axis = 1> (c)", ""),
    "split": ("p, q, r = Split<axis = -3> (a) b = Concat<axis = 1> (r, p, q)", ""),
    "slice": (
        "s = Slice (a, from, to, k) b = Add (a, s)",
        "<int64[1] from = {1}, int64[1] to = {2}, int64[1] k = {1}>",
    ),
    "slice first": ("s = Slice (a, from, to) b = Add (a, s)", "<int64[2] from = {0, 1}, int64[2] to = {9, 2}>"),
    "slice back": (
        "b = Slice (a, from, to, k, step)",
        "<int64[2] from = {-1, -1}, int64[2] to = {-99, -99}, int64[2] k = {-1, 1}, int64[2] step = {-1, -1}>",
    ),
    "gather one": ("b = Gather<axis = 1> (a, k)", "<int64[3] k = {2, -1, 0}>"),
    "gather elements": ("i = ArgMin<axis = 1> (a) g = GatherElements<axis = 1> (a, i) b = Add (a, g)", ""),
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
    "reshape": (
        "s = Reshape (a, k) r = Relu (s) b = Reshape (r, l)",
        "<int64[3] k = {2, 3, 20}, int64[4] l = {2, 3, 4, 5}>",
    ),
    "unsqueeze": ("s = Unsqueeze (a, k) r = Relu (s) b = Squeeze (r, k)", "<int64[1] k = {2}>"),
    "unsqueeze two": ("s = Unsqueeze (a, k) r = Relu (s) b = Squeeze (r, k)", "<int64[2] k = {-1, 0}>"),
    "size": ("s = Size (a) f = Cast<to = 1> (s) b = Add (a, f)", ""),
    "identity": ("b = Identity (a)", ""),
}


@pytest.mark.parametrize("name", UNDONE)
def test_passes(name: str) -> None:
    body, initializers = UNDONE[name]
    check_count(
        f"main (float[2,4,5,3] x) => (float[2,4,5,3] y) {initializers} {{ a = {DOWN} (x) {body} y = {BACK} (b) }}", 0
    )


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18])
@pytest.mark.parametrize("name", ["unary", "itself", "scalar", "channel", "row", "full", "sum", "prelu", "concat"])
def test_passes_at_every_opset(name: str, opset: int) -> None:
    body, initializers = UNDONE[name]
    if name == "sum" and opset < 8:
        body, initializers = "r = Relu (a) b = Sum (a, r)", ""
    if name == "concat":
        body = "r = Neg (a) c = Concat<axis = 1> (a, r) s = ReduceSum<axes = [1]> (c) b = Add (a, s)"
        if opset >= 13:
            body, initializers = body.replace("<axes = [1]> (c)", "(c, k)"), "<int64[1] k = {1}>"
    check_count(
        f"main (float[2,4,5,3] x) => (float[2,4,5,3] y) {initializers} {{ a = {DOWN} (x) {body} y = {BACK} (b) }}",
        0,
        opset=opset,
    )


WHOLE = {
    "the mean drops the axes": (
        17,
        f"main (float[2,4,5,3] x) => (float[2,3] y)"
        f" {{ a = {DOWN} (x) y = ReduceMean<axes = [2, 3], keepdims = 0> (a) }}",
    ),
    "the mean of all": (
        17,
        f"main (float[2,4,5,3] x) => (float y) {{ a = {DOWN} (x) y = ReduceMean<keepdims = 0> (a) }}",
    ),
    "axes of a reduction that does nothing": (
        18,
        f"main (float[2,4,5,3] x) => (float[2,4,5,3] y) {{ a = {DOWN} (x)"
        f" b = ReduceMax<noop_with_empty_axes = 1> (a) y = {BACK} (b) }}",
    ),
    "arg max drops": (
        17,
        f"main (float[2,4,5,3] x) => (int64[2,4,5] y) {{ a = {DOWN} (x) y = ArgMax<axis = 1, keepdims = 0> (a) }}",
    ),
    "slice by attributes": (
        9,
        f"main (float[2,4,5,3] x) => (float[2,4,2,1] y) {{ a = {DOWN} (x)"
        f" b = Slice<axes = [1, -1], starts = [2, 0], ends = [9, 2]> (a) y = {BACK} (b) }}",
    ),
    "slice by attributes without axes": (
        9,
        f"main (float[2,4,5,3] x) => (float[1,4,5,1] y) {{ a = {DOWN} (x)"
        f" b = Slice<starts = [1, 2], ends = [9, 9]> (a) y = {BACK} (b) }}",
    ),
    "pad by an attribute": (
        10,
        f"main (float[2,4,5,3] x) => (float[2,5,8,6] y) {{ a = {DOWN} (x)"
        f" b = Pad<pads = [0, 1, 0, 1, 0, 2, 1, 2]> (a) y = {BACK} (b) }}",
    ),
    "pad by an input": (
        17,
        f"main (float[2,4,5,3] x) => (float[2,5,8,6] y) <int64[8] p = {{0, 1, 0, 1, 0, 2, 1, 2}}, float v = {{3}}>"
        f" {{ a = {DOWN} (x) b = Pad (a, p, v) y = {BACK} (b) }}",
    ),
    "pad of axes by what a caller gives": (
        18,
        f"main (float[2,4,5,3] x, int64[2] p) => (float[2,4,5,c] y) <int64[1] k = {{1}}>"
        f" {{ a = {DOWN} (x) n = Abs (p) b = Pad (a, n, , k) y = {BACK} (b) }}",
    ),
    "tile": (
        17,
        f"main (float[2,4,5,3] x) => (float[4,4,10,9] y) <int64[4] k = {{2, 3, 1, 2}}>"
        f" {{ a = {DOWN} (x) b = Tile (a, k) y = {BACK} (b) }}",
    ),
    "expand by fewer axes": (
        17,
        f"main (float[2,4,1,3] x) => (float[2,4,5,3] y) <int64[1] k = {{5}}>"
        f" {{ a = {DOWN} (x) b = Expand (a, k) y = {BACK} (b) }}",
    ),
    "expand by a shape that is computed": (
        17,
        f"main (float[2,4,1,3] x, float[2,3,4,5] like) => (float[2,4,5,3] y)"
        f" {{ a = {DOWN} (x) s = Shape (like) b = Expand (a, s) y = {BACK} (b) }}",
    ),
    "resize": (
        17,
        f"main (float[2,4,5,3] x) => (float[2,8,10,3] y) <float[4] k = {{1, 1, 2, 2}}>"
        f' {{ a = {DOWN} (x) b = Resize<mode = "nearest"> (a, , k) y = {BACK} (b) }}',
    ),
    "resize to sizes": (
        13,
        f"main (float[2,4,5,3] x) => (float[2,8,9,3] y) <int64[4] k = {{2, 3, 8, 9}}>"
        f' {{ a = {DOWN} (x) b = Resize<mode = "nearest"> (a, , , k) y = {BACK} (b) }}',
    ),
    "resize of axes": (
        18,
        f"main (float[2,4,5,3] x) => (float[2,8,10,3] y) <float[2] k = {{2, 2}}>"
        f' {{ a = {DOWN} (x) b = Resize<mode = "nearest", axes = [2, 3]> (a, , k) y = {BACK} (b) }}',
    ),
    "resize, linear, back to the layout of its kernel": (
        17,
        f"main (float[2,3,4,5] x) => (float[2,3,8,10] y) <float[4] k = {{1, 2, 2, 1}}>"
        f' {{ a = {BACK} (x) b = Resize<mode = "linear"> (a, , k) y = {DOWN} (b) }}',
    ),
    "upsample": (
        9,
        f"main (float[2,4,5,3] x) => (float[2,8,10,3] y) <float[4] k = {{1, 1, 2, 2}}>"
        f" {{ a = {DOWN} (x) b = Upsample (a, k) y = {BACK} (b) }}",
    ),
    "upsample by an attribute": (
        7,
        f"main (float[2,4,5,3] x) => (float[2,8,10,3] y)"
        f" {{ a = {DOWN} (x) b = Upsample<scales = [1.0, 1.0, 2.0, 2.0]> (a) y = {BACK} (b) }}",
    ),
    "gather many": (
        17,
        f"main (float[2,4,5,3] x) => (float[2,4,5,2,2] y) <int64[2,2] k = {{0, 2, 1, 0}}>"
        f" {{ a = {DOWN} (x) b = Gather<axis = 1> (a, k) y = Transpose<perm = [0, 3, 4, 1, 2]> (b) }}",
    ),
    "gather one": (
        17,
        f"main (float[2,4,5,3] x) => (float[2,4,5] y) <int64 k = {{1}}>"
        f" {{ a = {DOWN} (x) y = Gather<axis = 1> (a, k) }}",
    ),
    "reshape": (
        17,
        f"main (float[2,4,5,6] x) => (float[2,20,6] y) <int64[3] k = {{2, 6, 20}}>"
        f" {{ a = {DOWN} (x) b = Reshape (a, k) y = Transpose<perm = [0, 2, 1]> (b) }}",
    ),
    "reshape of unknown sizes": (
        17,
        f"main (float[N,4,5,6] x) => (float[N,20,6] y) <int64[3] k = {{0, 6, -1}}>"
        f" {{ a = {DOWN} (x) b = Reshape (a, k) y = Transpose<perm = [0, 2, 1]> (b) }}",
    ),
    "flatten": (
        17,
        "main (float[2,4,5,6] x) => (float[8,30] y)"
        " { a = Transpose<perm = [2, 3, 0, 1]> (x) b = Flatten<axis = 2> (a) y = Transpose (b) }",
    ),
    "layer norm keeps its axes": (
        17,
        "main (float[2,4,5,3] x) => (float[2,4,5,3] y) <float[3] s = {1, 2, 3}>"
        " { a = Transpose<perm = [0, 2, 1, 3]> (x) b = LayerNormalization (a, s)"
        " y = Transpose<perm = [0, 2, 1, 3]> (b) }",
    ),
    "instance norm keeps its channel": (
        17,
        "main (float[2,3,4,5] x) => (float[2,3,4,5] y) <float[3] s = {1, 2, 3}>"
        " { a = Transpose<perm = [0, 1, 3, 2]> (x) b = InstanceNormalization (a, s, s)"
        " y = Transpose<perm = [0, 1, 3, 2]> (b) }",
    ),
    "triangles": (
        17,
        "main (float[2,4,5,3] x) => (float[2,4,5,3] y)"
        " { a = Transpose<perm = [1, 0, 2, 3]> (x) b = Trilu (a) y = Transpose<perm = [1, 0, 2, 3]> (b) }",
    ),
    "matmul, batch axes": (
        17,
        "main (float[2,4,5,3] x, float[2,4,3,6] w) => (float[2,4,5,6] y) { a = Transpose<perm = [1, 0, 2, 3]> (x)"
        " v = Transpose<perm = [1, 0, 2, 3]> (w) b = MatMul (a, v) y = Transpose<perm = [1, 0, 2, 3]> (b) }",
    ),
    "matmul, a matrix on the right": (
        17,
        "main (float[2,4,5,3] x, float[3,6] w) => (float[2,4,5,6] y)"
        " { a = Transpose<perm = [1, 2, 0, 3]> (x) b = MatMul (a, w) y = Transpose<perm = [2, 0, 1, 3]> (b) }",
    ),
    "matmul, both turned": (
        17,
        "main (float[7,3,5] x, float[7,6,3] w) => (float[7,6,5] y) { a = Transpose<perm = [0, 2, 1]> (x)"
        " v = Transpose<perm = [0, 2, 1]> (w) b = MatMul (a, v) y = Transpose<perm = [0, 2, 1]> (b) }",
    ),
    "matmul of matrices becomes Gemm": (
        17,
        "main (float[3,5] x, float[6,3] w) => (float[5,6] y) { a = Transpose (x) v = Transpose (w) y = MatMul (a, v) }",
    ),
    "matmul before Gemm could do without C": (
        9,
        "main (float[3,5] x, float[6,3] w) => (float[6,5] y)"
        " { a = Transpose (x) v = Transpose (w) b = MatMul (a, v) y = Transpose (b) }",
    ),
    "matmul of integers": (
        17,
        "main (int32[3,5] x, int32[6,3] w) => (int32[6,5] y)"
        " { a = Transpose (x) v = Transpose (w) b = MatMul (a, v) y = Transpose (b) }",
    ),
    "gemm takes operands as they are": (
        17,
        "main (float[3,5] x, float[3,6] w) => (float[5,6] y) <float[6] c = {1, 2, 3, 4, 5, 6}>"
        " { a = Transpose (x) v = Transpose (w) y = Gemm<transB = 1, alpha = 0.5> (a, v, c) }",
    ),
    "gemm turned": (
        17,
        "main (float[3,5] x, float[3,6] w) => (float[6,5] y) <float[6] c = {1, 2, 3, 4, 5, 6}>"
        " { b = Gemm<transA = 1, beta = 2.0> (x, w, c) y = Transpose (b) }",
    ),
    "gemm with a C of its own": (
        17,
        "main (float[5,3] x, float[3,6] w, float[6,5] d) => (float[6,5] y)"
        " { c = Transpose (d) b = Gemm (x, w, c) y = Transpose (b) }",
    ),
    "blocks of scales": (
        21,
        "main (float[4,6] x) => (float[4,6] y) <float[6,2] s = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}>"
        " { a = Transpose (x) q = QuantizeLinear<axis = 1, block_size = 2, output_dtype = 3> (a, s)"
        " b = DequantizeLinear<axis = 1, block_size = 2> (q, s) y = Transpose (b) }",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_vanishes(name: str) -> None:
    opset, text = WHOLE[name]
    check_count(text, 0, opset=opset)


def test_a_table_is_read_by_its_rows() -> None:
    """Single elements of a transposed table take longer to gather than its rows, transposed behind."""
    table = ", ".join(map(str, range(32 * 8)))
    check_keeps(
        "transpose_optimizer",
        f"main (int64[S,S] i) => (float[8,S,S] y) <float[32,8] t = {{{table}}}>"
        " { g = Gather (t, i) y = Transpose<perm = [2, 0, 1]> (g) }",
        "no choice of layouts around it has fewer transposes",
    )


def test_one_column_of_heads_is_read_alike_in_both_layouts() -> None:
    table = ", ".join(map(str, range(32)))
    check_count(
        f"main (int64[S,S] i) => (float[1,S,S] y) <float[32,1] t = {{{table}}}>"
        " { g = Gather (t, i) y = Transpose<perm = [2, 0, 1]> (g) }",
        0,
    )


def test_shape_of_a_transposed_value_is_a_gather() -> None:
    check_count(
        f"main (float[N,H,W,3] x) => (int64[4] s, int64[2] t, int64 n) {{ a = {DOWN} (x) s = Shape (a)"
        " t = Shape<start = -2> (a) n = Size (a) }",
        0,
    )
