"""Zeros around an image become pads of Conv and AveragePool, and of nothing else."""

import pytest

from ortopt.testing import check_keeps

PASS = "pad_fusion"
HEAD = "(float[1,2,6,6] x, float[3,2,3,3] w) => (float[A,B,C,D] y)"
POOL = "(float[1,2,6,6] x) => (float[A,B,C,D] y)"


def keeps(pads: str, node: str, extra: str = "") -> str:
    return f"<int64[8] p = {{{pads}}}{extra}> {{ t = Pad {node} }}"


EDGE, SAME = '<mode = "edge">', '<auto_pad = "SAME_UPPER">'
ONE = "0, 0, 1, 1, 0, 0, 1, 1"
AVERAGE = "(x, p) y = AveragePool <kernel_shape = [3, 3]"
KEPT = [
    (None, f"{POOL} {keeps(ONE, '(x, p) y = MaxPool <kernel_shape = [3, 3]> (t)')}"),  # ONNX Runtime's mistake
    ("it does not pad with 0", f"{HEAD} {keeps(ONE, '(x, p, v) y = Conv (t, w)', ', float v = {1}')}"),
    ("it does not pad with a constant", f"{HEAD} {keeps(ONE, EDGE + ' (x, p) y = Conv (t, w)')}"),
    ("it pads batch or channels", f"{HEAD} {keeps('1, 0, 0, 0, 0, 0, 0, 0', '(x, p) y = Conv (t, w)')}"),
    ("it takes something away", f"{HEAD} {keeps('0, 0, -1, 1, 0, 0, 1, 1', '(x, p) y = Conv (t, w)')}"),
    ("it takes something away",
     f"{HEAD} {keeps('0, 0, -1, 1, 0, 0, 1, 1', '(x, p) y = Conv <pads = [1, 1, 1, 1]> (t, w)')}"),
    ("the padding depends on the size", f"{HEAD} {keeps(ONE, f'(x, p) y = Conv {SAME} (t, w)')}"),
    ("it does not count its own padding", f"{POOL} {keeps(ONE, f'{AVERAGE}, pads = [1, 1, 1, 1]> (t)')}"),
    ("a window may begin in the padding", f"{POOL} {keeps(ONE, f'{AVERAGE}, ceil_mode = 1, strides = [2, 2]> (t)')}"),
    ("a window may lie in the padding", f"{POOL} {keeps('0, 0, 3, 0, 0, 0, 0, 0', f'{AVERAGE}> (t)')}"),
    ("the paddings are not known",
     "(float[1,2,6,6] x, float[3,2,3,3] w, int64[8] p) => (float[A,B,C,D] y) { t = Pad (x, p) y = Conv (t, w) }"),
    ("it is not a constant",
     "(float[1,2,6,6] x, float[3,2,3,3] w, float v) => (float[A,B,C,D] y) " + keeps(ONE, "(x, p, v) y = Conv (t, w)")),
    ("used elsewhere",
     "(float[1,2,6,6] x, float[3,2,3,3] w) => (float[A,B,C,D] y, float[A,B,E,F] t) " + keeps(ONE, "(x, p) y = Conv (t, w)")),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("because", "model"), KEPT)
def test_keeps(because: str | None, model: str) -> None:
    check_keeps(PASS, f"main {model}", because)


QUANTIZED = """main (uint8[1,2,6,6] x, float[3,2,3,3] w) => (float[A,B,C,D] y)
    <float s = {0.02}, uint8 z = {7}, float other = {0.03}, uint8 eight = {8}, int64[8] p = {0, 0, 1, 0, 0, 0, 2, 1}>
{
    f = DequantizeLinear (x, %s, z)
    t = Pad (f, p)
    q = QuantizeLinear (t, %s, z)
    d = DequantizeLinear (q, %s, %s)
    y = Conv (d, w)
}"""


FILLED = (QUANTIZED % ("s", "s", "s", "z")).replace(", float other = {0.03}, uint8 eight = {8}", ", uint8 n = {%d}")
FILLED = FILLED.replace("t = Pad (f, p)", "v = DequantizeLinear (n, s, z) t = Pad (f, p, v)")
