"""A Conv of 2x2 blocks that became channels reads the image itself, with twice the kernel and the strides."""

import pytest

from ortopt.testing import check_rewrites

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


def test_with_dimensions_that_are_not_fixed() -> None:
    check_rewrites(PASS, TEXT, ops={"SpaceToDepth": 0, "Conv": 1}, numbers=False)


@pytest.mark.parametrize("order", ["0, 1, 3, 5, 2, 4", "0, 3, 5, 1, 2, 4"])
@pytest.mark.parametrize("batch", ["2", "N"])
def test_blocks_that_a_transpose_moves(order: str, batch: str) -> None:
    text = BLOCKS.replace("0, 1, 3, 5, 2, 4", order).replace("[N,3", f"[{batch},3")
    check_rewrites(PASS, text, ops={"Transpose": 0, "Reshape": 0, "Conv": 1}, numbers=batch != "N")
