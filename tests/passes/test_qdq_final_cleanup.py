"""Quantize(Dequantize(q)) is q, for every q; Dequantize(Quantize(x)) is not x."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "qdq_final_cleanup"
ALL = {
    "uint8": np.arange(256, dtype=np.uint8),
    "int8": np.arange(-128, 128, dtype=np.int8),
    "uint16": np.arange(1 << 16, dtype=np.uint16),
    "int16": np.arange(-(1 << 15), 1 << 15, dtype=np.int16),
}


def pair(dtype: str, scale: str, zero: int | None = 0, number: str = "float") -> str:
    zeros, operands = ("", "") if zero is None else (f", {dtype} z = {{{zero}}}", ", z")
    return f"""main ({dtype}[N] q) => ({dtype}[N] y) <{number} s = {{{scale}}}{zeros}> {{
        x = DequantizeLinear (q, s{operands}) p = QuantizeLinear (x, s{operands}) y = Identity (p) }}"""


@pytest.mark.parametrize(
    ("dtype", "zero"),
    [("uint8", 0), ("uint8", 255), ("int8", -128), ("int8", 7), ("uint16", 65535), ("int16", -32768), ("int16", 0)],
)
@pytest.mark.parametrize("scale", ["1.0", "0.0039215689", "3.3333e-5", "1e-30", "7e29"])
def test_every_integer_comes_back(dtype: str, zero: int, scale: str) -> None:
    check_rewrites(
        PASS, pair(dtype, scale, zero), after="y = Identity (q)", opset=21, inputs={"q": ALL[dtype]}
    )  # the original itself gives every integer back: the numbers are compared


def test_half_precision() -> None:
    half = str(np.float16(0.0371).view(np.uint16))
    check_rewrites(
        PASS, pair("uint8", half, 128, "float16"), after="y = Identity (q)", opset=19, inputs={"q": ALL["uint8"]}
    )


def test_no_zero_point() -> None:
    check_rewrites(PASS, pair("uint8", "0.5", None), after="y = Identity (q)")


def test_zero_point_of_zero_or_none() -> None:
    check_rewrites(
        PASS,
        """main (uint8[N] q) => (uint8[N] y) <float s = {0.5}, uint8 z = {0}> {
            x = DequantizeLinear (q, s) p = QuantizeLinear (x, s, z) y = Identity (p) }""",
        after="y = Identity (q)",
    )


def test_equal_copies_and_a_spelling_with_one_axis() -> None:
    check_rewrites(
        PASS,
        """main (uint8[2,N] q) => (uint8[2,N] y)
        <float s = {0.5}, float[1] t = {0.5}, uint8[1] z = {9}, uint8 o = {9}> {
            x = DequantizeLinear (q, t, z) p = QuantizeLinear <axis = 0> (x, s, o) y = Identity (p) }""",
        after="y = Identity (q)",
    )


@pytest.mark.parametrize("axes", [(1, 1), (-1, 1), (0, -2)])
def test_scales_along_an_axis(axes: tuple[int, int]) -> None:
    check_rewrites(
        PASS,
        f"""main (int8[2,2] q) => (int8[2,2] y) <float[2] s = {{0.5, 0.3}}, int8[2] z = {{1, 2}}> {{
            x = DequantizeLinear <axis = {axes[0]}> (q, s, z) p = QuantizeLinear <axis = {axes[1]}> (x, s, z)
            y = Identity (p) }}""",
        after="y = Identity (q)",
    )


def test_blocks_and_the_contrib_domain() -> None:
    check_rewrites(
        PASS,
        """main (int8[4,4] q) => (int8[4,4] y)
        <float[4,2] s = {1, 2, 3, 4, 5, 6, 7, 8}, float r = {0.5}, int8 z = {0}> {
            x = DequantizeLinear <axis = 1, block_size = 2> (q, s)
            p = QuantizeLinear <axis = 1, block_size = 2, output_dtype = 3> (x, s)
            v = com.microsoft.DequantizeLinear (p, r, z)
            w = com.microsoft.QuantizeLinear (v, r, z)
            y = Identity (w) }""",
        after="y = Identity (q)",
        opset=21,
    )


def test_the_dequantized_value_may_be_used_elsewhere() -> None:
    check_rewrites(
        PASS,
        """main (uint8[N] q) => (uint8[N] y, float[N] x) <float s = {0.5}> {
            x = DequantizeLinear (q, s) p = QuantizeLinear (x, s) y = Identity (p) }""",
        after="x = DequantizeLinear (q, s) y = Identity (q)",
    )


def between(
    constants: str, there: str = "s, z", back: str = "s, z", dtypes: tuple[str, str] = ("uint8", "uint8")
) -> str:
    return f"""main ({dtypes[0]}[2,2] q) => ({dtypes[1]}[2,2] y) <{constants}> {{
        x = DequantizeLinear ({there}) p = QuantizeLinear ({back}) y = Identity (p) }}"""


TINY = "float s = {1e-40}, uint8 z = {0}"
KEPT = [
    # Rounding and saturation are the model's own (ONNX Runtime drops the pair if asked):
    ("no DequantizeLinear comes before",
     "main (float[N] x) => (float[N] y) <float s = {0.5}> { q = QuantizeLinear (x, s) y = DequantizeLinear (q, s) }"),
    ("the scales differ", between("float s = {0.5}, uint8 z = {0}, float r = {0.50001}", "q, s, z", "x, r, z")),
    ("the scales differ", between("float[2] s = {0.5, 0.3}, uint8[2] z = {0, 0}", "q, s, z", "x, s, z")
        .replace("p = QuantizeLinear", "p = QuantizeLinear <axis = 0>")),
    ("the zero points differ", between("float s = {0.5}, uint8 z = {0}, uint8 o = {1}", "q, s, z", "x, s, o")),
    ("the quantized types differ",
     between("float s = {0.5}, uint8 z = {128}, int8 o = {0}", "q, s, z", "x, s, o", ("uint8", "int8"))),
    ("too large or too small", between(TINY, "q, s, z", "x, s, z")),
    ("too large or too small", between("float s = {3e38}, uint8 z = {0}", "q, s, z", "x, s, z")),
    ("too large or too small", between("float s = {-0.5}, uint8 z = {0}", "q, s, z", "x, s, z")),
    ("it is not a constant", between("", "q, s", "x, s").replace("[2,2] q)", "[2,2] q, float s)")),
    ("it is not a constant", between("", "q, s", "x, s").replace("[2,2] q)", "[2,2] q, float s = {0.5})")),
]  # fmt: skip


@pytest.mark.parametrize(("because", "model"), KEPT)
def test_keeps(because: str, model: str) -> None:
    check_keeps(PASS, model.replace("<> {", "{"), because)


def test_keeps_float8_and_bfloat16() -> None:
    eight = """main (float8e4m3fn[N] q, float8e4m3fn z) => (float8e4m3fn[N] y) <float s = {0.5}> {
        x = DequantizeLinear (q, s, z) p = QuantizeLinear (x, s, z) y = Identity (p) }"""
    check_keeps(PASS, eight, "does not saturate as integers do", opset=19)
    check_keeps(PASS, pair("uint8", "16128", 0, "bfloat16"), "neither float32 nor float16", opset=19)
