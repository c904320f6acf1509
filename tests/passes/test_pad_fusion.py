"""Zeros around an image become pads of Conv and AveragePool, and of nothing else."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "pad_fusion"
HEAD = "(float[1,2,6,6] x, float[3,2,3,3] w) => (float[A,B,C,D] y)"
POOL = "(float[1,2,6,6] x) => (float[A,B,C,D] y)"


@pytest.mark.parametrize(
    ("own", "pads"),
    [
        ("", "[1, 2, 3, 0]"),
        ("<pads = [1, 1, 1, 1], strides = [2, 2]>", "[2, 3, 4, 1]"),
        ('<auto_pad = "VALID">', "[1, 2, 3, 0]"),
        ('<auto_pad = "NOTSET", dilations = [2, 2]>', "[1, 2, 3, 0]"),
    ],
)
def test_conv(own: str, pads: str) -> None:
    strides = "strides = [2, 2], " if "strides" in own else "dilations = [2, 2], " if "dilations" in own else ""
    check_rewrites(
        PASS,
        f"main {HEAD} <int64[8] p = {{0, 0, 1, 2, 0, 0, 3, 0}}> {{ t = Pad (x, p) y = Conv {own} (t, w) }}",
        after=f"main {HEAD} {{ y = Conv <{strides}pads = {pads}> (x, w) }}",
    )


def test_more_padding_than_kernel() -> None:
    check_rewrites(
        PASS,
        f"main {HEAD} <int64[8] p = {{0, 0, 4, 5, 0, 0, 3, 7}}> {{ t = Pad (x, p) y = Conv (t, w) }}",
        ops={"Pad": 0},
    )


@pytest.mark.parametrize(
    ("opset", "constants", "pad"),
    [
        (10, "", "Pad <pads = [0, 0, 1, 0, 0, 0, 2, 0]> (x)"),
        (10, "", "Pad <pads = [0, 0, 1, 0, 0, 0, 2, 0], value = 0.0> (x)"),
        (13, "<int64[8] p = {0, 0, 1, 0, 0, 0, 2, 0}, float z = {0}>", "Pad (x, p, z)"),
        (18, "<int64[4] p = {0, 1, 0, 2}, int64[2] a = {-1, 2}>", "Pad (x, p, , a)"),
        (18, "<int64[2] p = {1, 2}, int64[1] a = {-2}, float z = {0}>", "Pad (x, p, z, a)"),
    ],
)
def test_every_spelling_of_pad(opset: int, constants: str, pad: str) -> None:
    check_rewrites(
        PASS,
        f"main {HEAD} {constants} {{ t = {pad} y = Conv (t, w) }}",
        after=f"main {HEAD} {{ y = Conv <pads = [1, 0, 2, 0]> (x, w) }}",
        opset=opset,
    )


@pytest.mark.parametrize(
    ("own", "pads"),
    [("", "[1, 2, 0, 1]"), ("pads = [1, 0, 1, 0], count_include_pad = 1, strides = [2, 1], ", "[2, 2, 1, 1]")],
)
def test_average(own: str, pads: str) -> None:
    strides = "strides = [2, 1], " if own else ""
    check_rewrites(
        PASS,
        f"""main {POOL} <int64[8] p = {{0, 0, 1, 2, 0, 0, 0, 1}}> {{
            t = Pad (x, p) y = AveragePool <{own}kernel_shape = [3, 3]> (t) }}""",
        after=f"""main {POOL} {{
            y = AveragePool <{strides}kernel_shape = [3, 3], pads = {pads}, count_include_pad = 1> (x) }}""",
    )


@pytest.mark.parametrize(("dims", "pads"), [("5", "0, 0, 2, 0, 0, 1"), ("4,4,4", "0, 0, 1, 0, 2, 0, 0, 0, 1, 0")])
def test_other_ranks(dims: str, pads: str) -> None:
    rank = dims.count(",") + 1
    unknown, kernel = ",".join("CDE"[:rank]), ",".join(["2"] * rank)
    check_rewrites(
        PASS,
        f"""main (float[N,2,{dims}] x, float[2,2,{kernel}] w) => (float[N,2,{unknown}] y)
            <int64[{2 * rank + 4}] p = {{{pads}}}> {{ t = Pad (x, p) y = Conv (t, w) }}""",
        ops={"Pad": 0},
    )


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


def test_a_padded_image_that_is_quantized_as_before() -> None:
    check_rewrites(
        PASS,
        (QUANTIZED % ("s", "s", "s", "z")).replace(", float other = {0.03}, uint8 eight = {8}", ""),
        after="""main (uint8[1,2,6,6] x, float[3,2,3,3] w) => (float[A,B,C,D] y) <float s = {0.02}, uint8 z = {7}>
        {
            f = DequantizeLinear (x, s, z)
            y = Conv <pads = [1, 0, 2, 1]> (f, w)
        }""",
    )


FILLED = (QUANTIZED % ("s", "s", "s", "z")).replace(", float other = {0.03}, uint8 eight = {8}", ", uint8 n = {%d}")
FILLED = FILLED.replace("t = Pad (f, p)", "v = DequantizeLinear (n, s, z) t = Pad (f, p, v)")


def test_a_padding_that_is_dequantized() -> None:
    """Some quantizers quantize the number that is padded with, too."""
    check_rewrites(PASS, FILLED % 7, ops={"Conv": 1, "Pad": 0, "QuantizeLinear": 0, "DequantizeLinear": 1})
    check_keeps(PASS, FILLED % 8, because="it does not pad with 0")


@pytest.mark.parametrize("names", [("other", "s", "s", "z"), ("s", "other", "other", "z"), ("s", "s", "other", "z")])
def test_another_scale_rounds(names: tuple[str, ...]) -> None:
    check_keeps(PASS, QUANTIZED % names, because="the padded image is quantized otherwise")


def test_another_zero_point_moves_the_zeros() -> None:
    check_keeps(PASS, QUANTIZED % ("s", "s", "s", "eight"), because="the padded image is quantized otherwise")


def test_quantized_weights_of_an_axis_are_no_image() -> None:
    check_keeps(
        PASS,
        """main (uint8[1,2,6,6] x, float[3,2,3,3] w) => (float[A,B,C,D] y)
        <float[2] s = {0.02, 0.03}, uint8[2] z = {7, 7}, int64[8] p = {0, 0, 1, 0, 0, 0, 2, 1}>
        {
            f = DequantizeLinear <axis = 1> (x, s, z)
            t = Pad (f, p)
            q = QuantizeLinear <axis = 1> (t, s, z)
            d = DequantizeLinear <axis = 1> (q, s, z)
            y = Conv (d, w)
        }""",
        because="the padded image is quantized otherwise",
    )
