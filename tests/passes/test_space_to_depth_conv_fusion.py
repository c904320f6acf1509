"""A Conv of 2x2 blocks that became channels reads the image itself, with twice the kernel and the strides."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "space_to_depth_conv_fusion"


def weights(*shape: int) -> str:
    count = 1
    for size in shape:
        count *= size
    return ", ".join(str((7 * index) % 11 - 5) for index in range(count))


W = f"float[2,12,3,3] w = {{{weights(2, 12, 3, 3)}}}"
TEXT = f"""main (float[N,3,H,6] x) => (float[A,B,D,E] y) <{W}, float[2] b = {{1, -2}}> {{
    s = SpaceToDepth <blocksize = 2> (x) y = Conv <pads = [1, 0, 1, 2], strides = [1, 2]> (s, w, b) }}"""
BLOCKS = f"""main (float[N,3,8,6] x) => (float[A,B,D,E] y)
    <{W}, int64[6] apart = {{0, 3, 4, 2, 3, 2}}, int64[4] whole = {{0, 12, 4, 3}}> {{
    a = Reshape (x, apart) t = Transpose <perm = [0, 1, 3, 5, 2, 4]> (a) s = Reshape (t, whole) y = Conv (s, w) }}"""


def test_space_to_depth() -> None:
    text = TEXT.replace("[N,3,H,6]", "[2,3,8,6]")
    check_rewrites(PASS, text, ops={"SpaceToDepth": 0, "Conv": 1})


def test_of_one_channel_and_single_points() -> None:
    text = """main (float[1,1,4,4] x) => (float[1,1,2,2] y) <float[1,4,1,1] w = {1, 2, 3, 4}> {
        s = SpaceToDepth <blocksize = 2> (x) y = Conv <auto_pad = "NOTSET"> (s, w) }"""
    check_rewrites(PASS, text, ops={"SpaceToDepth": 0, "Conv": 1})


def test_with_dimensions_that_are_not_fixed() -> None:
    check_rewrites(PASS, TEXT, ops={"SpaceToDepth": 0, "Conv": 1}, numbers=False)


@pytest.mark.parametrize("order", ["0, 1, 3, 5, 2, 4", "0, 3, 5, 1, 2, 4"])
@pytest.mark.parametrize("batch", ["2", "N"])
def test_blocks_that_a_transpose_moves(order: str, batch: str) -> None:
    text = BLOCKS.replace("0, 1, 3, 5, 2, 4", order).replace("[N,3", f"[{batch},3")
    check_rewrites(PASS, text, ops={"Transpose": 0, "Reshape": 0, "Conv": 1}, numbers=batch != "N")


def test_a_fused_convolution_with_a_residual() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[1,1,4,4] x, float[1,1,2,2] z) => (float[1,1,2,2] y)
        <float[1,4,1,1] w = {1, 2, 3, 4}, float[1] b = {-3}> {
            s = SpaceToDepth <blocksize = 2> (x)
            y = com.microsoft.FusedConv <activation = "Relu"> (s, w, b, z) }"""
    check_rewrites(PASS, text, ops={"SpaceToDepth": 0, "com.microsoft::FusedConv": 1})


test_keeps = keeps(
    PASS,
    [
        ("blocks are used elsewhere", TEXT.replace("y)", "y, float[P,Q,R,S] s)", 1)),
        ("blocks are used elsewhere", BLOCKS.replace("y)", "y, float[P,Q,R,S,T,U] t)", 1)),
        ("blocks are not of 2x2", TEXT.replace("blocksize = 2", "blocksize = 1")),
        ("number of channels is not fixed", TEXT.replace("[N,3,", "[N,C,")),
        ("channels 1 to 4", TEXT.replace("[N,3,", "[N,5,").replace(W, f"float[2,20,1,1] w = {{{weights(2, 20)}}}")),
        ("it has groups", TEXT.replace("<pads", "<group = 2, pads").replace(W, f"float[2,6,1,1] w = {{{weights(2, 6)}}}")),  # noqa: E501
        ("it has dilations", TEXT.replace("<pads", "<dilations = [1, 2], pads")),
        ("padding is not written out", TEXT.replace("pads = [1, 0, 1, 2]", 'auto_pad = "SAME_UPPER"')),
        ("weights are no constant", TEXT.replace("x)", "x, float[2,12,3,3] w)", 1).replace(f"<{W}, ", "<")),
        ("single precision only", TEXT.replace("float[", "double[")),
        ("moves no blocks", BLOCKS.replace("0, 1, 3, 5, 2, 4", "0, 1, 5, 3, 2, 4")),
        ("image's size is not known", BLOCKS.replace("[N,3,8,6]", "[N,3,H,6]")),
        ("do not fill", BLOCKS.replace("[N,3,8,6]", "[2,3,4,9]").replace("{0, 3, 4, 2, 3, 2}", "{2, 3, 3, 2, 3, 2}").replace("{0, 12, 4, 3}", "{2, 12, 3, 3}")),  # noqa: E501
        ("not of 2x2", BLOCKS.replace("{0, 3, 4, 2, 3, 2}", "{0, 3, 3, 2, 4, 2}").replace("{0, 12, 4, 3}", "{0, 12, 3, 4}")),  # noqa: E501
        ("joined otherwise", BLOCKS.replace("{0, 12, 4, 3}", "{0, 12, 3, 4}")),
    ],
)  # fmt: skip
