"""Quantize(Dequantize(q)) is q, for every q; Dequantize(Quantize(x)) is not x."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

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
