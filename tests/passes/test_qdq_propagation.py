"""Ops that only move values change places with DequantizeLinear before them and with QuantizeLinear behind them."""

import numpy as np
import pytest

from ortopt.options import March, Options, Target
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "qdq_propagation"
ONE = "float s = {0.1}, uint8 z = {3}"
EVERY = {"q": np.arange(256, dtype=np.uint8).reshape(1, 4, 8, 8)}
DEQUANTIZE = "x = DequantizeLinear (q, s, z)"

MOVING = {
    "Transpose": ("Transpose <perm = [0, 2, 3, 1]> ({})", ""),
    "Transpose of all": ("Transpose ({})", ""),
    "Reshape": ("Reshape ({}, k)", ", int64[2] k = {8, -1}"),
    "Reshape that copies": ("Reshape ({}, k)", ", int64[3] k = {0, 0, -1}"),
    "Flatten": ("Flatten <axis = 2> ({})", ""),
    "Squeeze": ("Squeeze ({}, k)", ", int64[1] k = {0}"),
    "Unsqueeze": ("Unsqueeze ({}, k)", ", int64[2] k = {0, -1}"),
    "DepthToSpace": ("DepthToSpace <blocksize = 2> ({})", ""),
    "ReverseSequence": ("ReverseSequence <batch_axis = 0, time_axis = 1> ({}, k)", ", int64[1] k = {3}"),
}
SELECTING = {
    "Slice": ("Slice ({}, k, l, m)", ", int64[1] k = {1}, int64[1] l = {6}, int64[1] m = {2}"),
    "Gather": ("Gather <axis = 1> ({}, k)", ", int64[2,2] k = {3, -4, 0, 1}"),
    "GatherElements": ("GatherElements <axis = 3> ({}, k)", ", int64[1,1,1,2] k = {3, -4}"),
    "GatherND": ("GatherND ({}, k)", ", int64[2,2] k = {0, 3, 0, 1}"),
    "Compress": ("Compress <axis = 1> ({}, k)", ", bool[4] k = {1, 0, 1, 1}"),
    "MaxPool": ("MaxPool <kernel_shape = [2, 3]> ({})", ""),
    "MaxPool with strides": ("MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> ({})", ""),
    "MaxPool of VALID": ('MaxPool <kernel_shape = [3, 3], auto_pad = "VALID"> ({})', ""),
}
REPEATING = {
    "Expand": ("Expand ({}, k)", ", int64[5] k = {3, 1, 1, 1, 1}"),
    "Tile": ("Tile ({}, k)", ", int64[4] k = {2, 1, 3, 1}"),
}


@pytest.mark.parametrize("name", [*MOVING, *SELECTING])
def test_behind_dequantizing(name: str) -> None:
    op, constants = (MOVING | SELECTING)[name]
    dims = ",".join("ABCDEF"[: {"Flatten": 2, "Reshape": 2, "Reshape that copies": 3, "Squeeze": 3, "Unsqueeze": 6,
                                "Gather": 5, "GatherND": 3}.get(name, 4)])  # fmt: skip
    check_rewrites(
        PASS,
        f"main (uint8[1,4,8,8] q) => (float[{dims}] y) <{ONE}{constants}> {{ {DEQUANTIZE} y = {op.format('x')} }}",
        after=f"t = {op.format('q')} y = DequantizeLinear (t, s, z)",
        inputs=EVERY,
    )


@pytest.mark.parametrize("name", [*MOVING, *REPEATING])
def test_before_quantizing(name: str) -> None:
    op, constants = (MOVING | REPEATING)[name]
    dims = ",".join("ABCDEF"[: {"Flatten": 2, "Reshape": 2, "Reshape that copies": 3, "Squeeze": 3, "Unsqueeze": 6,
                                "Expand": 5}.get(name, 4)])  # fmt: skip
    check_rewrites(
        PASS,
        f"""main (float[1,4,8,8] x) => (uint8[{dims}] y) <{ONE}{constants}> {{
            t = {op.format("x")} y = QuantizeLinear (t, s, z) }}""",
        after=f"t = QuantizeLinear (x, s, z) y = {op.format('t')}",
    )


@pytest.mark.parametrize(
    ("dtype", "opset"),
    [("int8", 13), ("uint8", 10), ("int16", 21), ("uint16", 21), ("int32", 13), ("uint8", 19)],
)
def test_types(dtype: str, opset: int) -> None:
    check_rewrites(
        PASS,
        f"""main ({dtype}[2,3] q) => (float[3,2] y) <float s = {{0.1}}> {{
            x = DequantizeLinear (q, s) y = Transpose (x) }}""",
        after="t = Transpose (q) y = DequantizeLinear (t, s)",
        opset=opset,
    )


def test_half_precision() -> None:
    check_rewrites(
        PASS,
        """main (int8[2,3] q, float16 s, int8 z) => (float16[3,2] y) {
            x = DequantizeLinear (q, s, z) y = Transpose (x) }""",
        after="t = Transpose (q) y = DequantizeLinear (t, s, z)",
        opset=19,
    )


def test_contrib_ops_of_old_opsets() -> None:
    check_rewrites(
        PASS,
        f"""<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (uint8[2,3] q) => (uint8[2,1,3] y) <{ONE}> {{
            x = com.microsoft.DequantizeLinear (q, s, z)
            t = Transpose (x)
            r = Relu (t)
            u = Transpose <perm = [1, 0]> (r)
            k = Constant <value_ints = [1]> ()
            v = Unsqueeze (u, k)
            y = com.microsoft.QuantizeLinear (v, s, z) }}""",
        after="""t = Transpose (q)
            x = com.microsoft.DequantizeLinear (t, s, z)
            r = Relu (x)
            p = com.microsoft.QuantizeLinear (r, s, z)
            u = Transpose <perm = [1, 0]> (p)
            k = Constant <value_ints = [1]> ()
            y = Unsqueeze (u, k)""",
    )


def test_one_scale_of_rank_1_loses_its_axis() -> None:
    check_rewrites(
        PASS,
        """main (uint8[2,3] q) => (float[6] y) <float[1] s = {0.1}, uint8[1] z = {3}, int64[1] k = {-1}> {
            x = DequantizeLinear <axis = 1> (q, s, z) y = Reshape (x, k) }""",
        after="""main (uint8[2,3] q) => (float[6] y) <float s = {0.1}, uint8 z = {3}, int64[1] k = {-1}> {
            t = Reshape (q, k) y = DequantizeLinear (t, s, z) }""",
    )


def test_the_scale_may_be_computed() -> None:
    check_rewrites(
        PASS,
        """main (float[2,3] a) => (float[3,2] y) {
            q, s, z = DynamicQuantizeLinear (a) x = DequantizeLinear (q, s, z) y = Transpose (x) }""",
        after="q, s, z = DynamicQuantizeLinear (a) t = Transpose (q) y = DequantizeLinear (t, s, z)",
    )


AXES = [
    ("Transpose <perm = [2, 0, 1]> ({})", "", 1, 2, 3),
    ("Transpose ({})", "", -2, 1, 3),
    ("Transpose <perm = [2, 0, 1]> ({})", "", 0, 1, 3),
    ("Unsqueeze ({}, k)", ", int64[2] k = {0, 2}", 1, 3, 5),
    ("Unsqueeze ({}, k)", ", int64[1] k = {-1}", 1, 1, 4),
    ("Squeeze ({}, k)", ", int64[1] k = {0}", 1, 0, 2),
    ("Squeeze ({}, k)", ", int64[1] k = {-1}", 1, 1, 2),
    ("Gather ({}, k)", ", int64[2] k = {0, 0}", 1, 1, 3),
    ("Gather ({}, k)", ", int64[2,2] k = {0, 0, 0, 0}", 1, 2, 4),
    ("Gather ({}, k)", ", int64 k = {0}", 1, 0, 2),
    ("Gather <axis = -1> ({}, k)", ", int64[2,2] k = {0, 0, 0, 0}", 1, 1, 4),
    ("Slice ({}, k, l, m)", ", int64[1] k = {0}, int64[1] l = {1}, int64[1] m = {-1}", 1, 1, 3),
]


@pytest.mark.parametrize(("op", "constants", "axis", "moved", "rank"), AXES)
def test_scales_along_an_axis(op: str, constants: str, axis: int, moved: int, rank: int) -> None:
    shape, count = {0: ("4,1,1", 4), 1: ("1,4,1", 4), -2: ("1,4,1", 4)}[axis]
    numbers = ", ".join(str(0.5 + index) for index in range(count))
    zeros = ", ".join(str(index) for index in range(count))
    dims = ",".join("ABCDEF"[:rank])
    scales = f"float[4] s = {{{numbers}}}, int8[4] z = {{{zeros}}}"
    check_rewrites(
        PASS,
        f"""main (int8[{shape}] q) => (float[{dims}] y) <{scales}{constants}> {{
            x = DequantizeLinear <axis = {axis}> (q, s, z) y = {op.format("x")} }}""",
        after=f"t = {op.format('q')} y = DequantizeLinear <axis = {moved}> (t, s, z)",
    )


def test_blocks_of_a_weight() -> None:
    packed = ", ".join(str(index * 37 % 256) for index in range(64))
    before = f"""main (float[N,32] x) => (float[N,4] y) <int4[4,32] w = {{{packed}}},
        float[4,2] s = {{1, 2, 3, 4, 5, 6, 7, 8}}, int4[4,2] z = {{18, 52, 101, 7}}> {{
        d = DequantizeLinear <axis = 1, block_size = 16> (w, s, z) t = Transpose <perm = [1, 0]> (d) y = MatMul (x, t)
    }}"""
    check_rewrites(
        PASS,
        before,
        after="""v = Transpose <perm = [1, 0]> (w) p = Transpose <perm = [1, 0]> (s) o = Transpose <perm = [1, 0]> (z)
            d = DequantizeLinear <axis = 0, block_size = 16> (v, p, o) y = MatMul (x, d)""",
        opset=21,
    )


HEAD = f"(uint8[1,4,8,8] q) => (float[A,B,C,D] y) <{ONE}"
POOLED = f"{HEAD}> {{ {DEQUANTIZE} y = MaxPool"
SCALES = "(int8[4,2,3] q, float[4] s) => (float[A,B,C] y)"
ALONG = "{ x = DequantizeLinear <axis = 0> (q, s)"
KEPT = [
    ("used elsewhere", f"(uint8[2,3] q) => (float[3,2] y, float[2,3] x) <{ONE}> {{ {DEQUANTIZE} y = Transpose (x) }}"),
    ("used elsewhere", f"(uint8[2,3] q) => (float[3,2] y, float[2,3] w) <{ONE}> {{ {DEQUANTIZE} y = Transpose (x) w = Neg (x) }}"),  # noqa: E501
    ("used elsewhere", f"(float[2,3] x) => (uint8[3,2] y, float[3,2] t) <{ONE}> {{ t = Transpose (x) y = QuantizeLinear (t, s, z) }}"),  # noqa: E501
    ("no op that keeps values", f"(float[2,3] x) => (uint8[2,3] y) <{ONE}> {{ t = Relu (x) y = QuantizeLinear (t, s, z) }}"),  # noqa: E501
    ("no op that keeps values",  # a MaxPool may drop NaN, which has no integer
     f"(float[1,4,8,8] x) => (uint8[A,B,C,D] y) <{ONE}> {{ t = MaxPool <kernel_shape = [2, 2]> (x) y = QuantizeLinear (t, s, z) }}"),  # noqa: E501
    ("it will be folded",
     f"() => (uint8[2] y) <{ONE}, float[1,2] x = {{1, 2}}, int64[1] k = {{0}}> {{ t = Squeeze (x, k) y = QuantizeLinear (t, s, z) }}"),  # noqa: E501
    ("there are several scales",
     "(float[2,3] x, float[3] s) => (uint8[3,2] y) { t = Transpose (x) y = QuantizeLinear <axis = 0> (t, s) }"),
    ("a computed scale has an axis",
     "(uint8[2,3] q, float[1] s) => (float[6] y) <int64[1] k = {-1}> { x = DequantizeLinear (q, s) y = Reshape (x, k) }"),  # noqa: E501
    ("which it would scatter", f"(int8[4,2,3] q, float[4] s) => (float[A,B] y) <int64[2] k = {{8, 3}}> {ALONG} y = Reshape (x, k) }}"),  # noqa: E501
    ("it gathers along the scales", f"{SCALES} <int64[2] k = {{0, 1}}> {ALONG} y = Gather (x, k) }}"),
    ("it slices along the scales",
     f"{SCALES} <int64[1] a = {{0}}, int64[1] b = {{2}}, int64[1] c = {{-3}}> {ALONG} y = Slice (x, a, b, c) }}"),
    ("it slices along the scales", f"{SCALES} <int64[1] a = {{0}}, int64[1] b = {{2}}> {ALONG} y = Slice (x, a, b) }}"),
    ("the axis of the scales is dropped",
     "(int8[1,2] q, float[N] s) => (float[2] y) <int64[1] k = {0}> { x = DequantizeLinear <axis = 0> (q, s) y = Squeeze (x, k) }"),  # noqa: E501
    ("no kernel of MaxPool takes the integers",
     "(int32[1,4,8,8] q) => (float[A,B,C,D] y) <float s = {0.1}> { x = DequantizeLinear (q, s) y = MaxPool <kernel_shape = [2, 2]> (x) }"),  # noqa: E501
    ("the scale does not keep the order", f"{POOLED} <kernel_shape = [2, 2]> (x) }}".replace("{0.1}", "{-0.1}")),
    ("the scale does not keep the order", f"{POOLED} <kernel_shape = [2, 2]> (x) }}".replace("{0.1}", "{0}")),
    ("it is not a constant",
     "(uint8[1,4,8,8] q, float s) => (float[A,B,C,D] y) { x = DequantizeLinear (q, s) y = MaxPool <kernel_shape = [2, 2]> (x) }"),  # noqa: E501
    ("the padding depends on the size", f'{POOLED} <kernel_shape = [2, 2], auto_pad = "SAME_UPPER"> (x) }}'),
    ("a window may begin in the padding", f"{POOLED} <kernel_shape = [2, 2], ceil_mode = 1, strides = [3, 3]> (x) }}"),
    ("a window may skip over", f"{POOLED} <kernel_shape = [2, 2], dilations = [2, 1]> (x) }}"),
    ("the indices are used",
     f"(uint8[1,4,8,8] q) => (float[A,B,C,D] y, int64[A,B,C,D] i) <{ONE}> {{ {DEQUANTIZE} y, i = MaxPool <kernel_shape = [2, 2]> (x) }}"),  # noqa: E501
    (
        "turned in every run",
        """main (int8[4,32] q, float[4,2] s) => (float[32,4] y) {
            x = DequantizeLinear <axis = 1, block_size = 16> (q, s) y = Transpose (x) }""",
        {"opset": 21},
    ),
    ("no provider has a kernel", f"main {POOLED} <kernel_shape = [2, 2]> (x) }}", {"opset": 11}),
    (
        "the function's caller decides perm",
        """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (uint8[2,3] x) => (float[3,2] y) { y = f.F <order = [1, 0]> (x) }
        <domain: "f", opset_import: ["" : 17]>
        F <order> (x) => (y) {
            s = Constant <value_float = 0.25> () a = DequantizeLinear (x, s)
            y = Transpose <perm: ints = @order> (a) }""",
    ),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)


@pytest.mark.parametrize("zeros", ["uint8[0] z = {}", "uint8[2] z = {3, 3}"])
def test_keeps_what_never_runs(zeros: str) -> None:
    model = f"main (uint8[1,4] q) => (float[A,B] y) <float s = {{0.1}}, {zeros}> {{ {DEQUANTIZE} y = Transpose (x) }}"
    check_keeps(PASS, model, "scale and zero point do not fit")


PAIR = """(float[1,4,8,8] x) => (float[1,4,64] y) <float s = {{0.1}}, {0} z = {{3}}, int64[3] k = {{0, 0, -1}}> {{
    q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) r = Reshape (d, k)
    p = QuantizeLinear (r, s, z) y = DequantizeLinear (p, s, z) }}"""


def test_pairs_of_signed_integers_stay_together() -> None:
    """ONNX Runtime makes them unsigned when it loads a model, and has slow kernels for those that it does not find."""
    check_keeps(PASS, f"main {PAIR.format('int8')}", "signed integers unsigned only within a pair")
    check_rewrites(PASS, f"main {PAIR.format('uint8')}", ops={"DequantizeLinear": 2})
    check_rewrites(
        PASS, f"main {PAIR.format('int8')}", ops={"DequantizeLinear": 2}, options=Options(march=March.NATIVE)
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_pairs_stay_together_for_other_runtimes(dtype: str) -> None:
    check_keeps(PASS, f"main {PAIR.format(dtype)}", "other runtimes match", target="onnx", opset=21)


def test_rows_of_a_table_are_dequantized_by_other_runtimes() -> None:
    text = """main (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.1}> {
        d = DequantizeLinear (w, s) y = Gather (d, i) }"""
    check_keeps(PASS, text, "other runtimes match", target="onnx")
    check_rewrites(PASS, text, after="r = Gather (w, i) y = DequantizeLinear (r, s)")


def test_weights_are_turned_for_other_runtimes_too() -> None:
    text = """main (float[2,4] x) => (float[2,3] y)
        <int8[3,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float s = {0.1}> {
        d = DequantizeLinear (w, s) t = Transpose <perm = [1, 0]> (d) y = MatMul (x, t) }"""
    after = "t = Transpose <perm = [1, 0]> (w) d = DequantizeLinear (t, s) y = MatMul (x, d)"
    check_rewrites(PASS, text, after=after, options=Options(target=Target.ONNX))
