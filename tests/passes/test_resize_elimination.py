"""A Resize by 1 goes in the modes that read each element at its place."""

import pytest

from ortopt.testing import check_rewrites

PASS = "resize_elimination"
TEXT = """main (float[N,2,4,5] x) => (float[A,B,C,D] y) <float[4] s = {1, 1, 1, 1}> { t = Resize <ATTRIBUTES> (x, , s) y = Neg (t) }"""  # noqa: E501
GONE = "main (float[N,2,4,5] x) => (float[A,B,C,D] y) { y = Neg (x) }"
KEEPING = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", KEEPING)
@pytest.mark.parametrize("opset", [11, 13, 18, 19])
def test_scales_of_one(mode: str, coordinates: str, opset: int) -> None:
    text = TEXT.replace("ATTRIBUTES", f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}"')
    if opset < 13:
        text = text.replace("(x, , s)", "(x, roi, s)").replace(
            "<float[4] s", "<float[8] roi = {0, 0, 0, 0, 1, 1, 1, 1}, float[4] s"
        )
    check_rewrites(PASS, text, GONE, opset=opset, numbers=mode != "cubic")
