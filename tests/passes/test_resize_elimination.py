"""A Resize by 1 goes in the modes that read each element at its place."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

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


@pytest.mark.parametrize(
    "attributes",
    [
        'mode = "linear", antialias = 1',
        'mode = "cubic", exclude_outside = 1, cubic_coeff_a = -0.5',
        'mode = "nearest", nearest_mode = "ceil"',
        'mode = "nearest", nearest_mode = "round_prefer_ceil", coordinate_transformation_mode = "half_pixel_symmetric"',
    ],
)
def test_other_attributes(attributes: str) -> None:
    check_rewrites(PASS, TEXT.replace("ATTRIBUTES", attributes), GONE, opset=19, numbers=False)


@pytest.mark.parametrize("nearest", ["floor", "round_prefer_floor"])
def test_half_a_pixel_further_and_rounded_down(nearest: str) -> None:
    text = TEXT.replace(
        "ATTRIBUTES", f'coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "{nearest}"'
    )
    check_rewrites(
        PASS,
        text.replace("(x, , s)", "(x, roi, s)").replace(
            "<float[4] s", "<float[8] roi = {0, 0, 0, 0, 1, 1, 1, 1}, float[4] s"
        ),
        GONE,
        opset=11,
    )


def test_sizes_of_the_input() -> None:
    text = """main (float[N,2,H,5] x) => (float[A,B,C,D] y) { s = Shape (x) t = Resize <mode = "linear"> (x, , , s) y = Neg (t) }"""  # noqa: E501
    check_rewrites(PASS, text, "y = Neg (x)")
    check_rewrites(
        PASS,
        text.replace("(x, , , s)", "(x, e, e, s)").replace("y) {", "y) <float[0] e = {}> {"),
        "y = Neg (x)",
        numbers=False,
    )
    check_keeps(PASS, text.replace("Shape (x)", "Shape (z)").replace("x)", "x, float[P,Q,R,S] z)", 1), "may differ")
    check_keeps(PASS, text.replace("s = Shape (x)", "").replace("x)", "x, int64[4] s)", 1), "the sizes are not known")


def test_some_axes() -> None:
    text = """main (float[N,2,H,5] x) => (float[A,B,C,D] y) {
        s = Shape <start = 2, end = 4> (x) t = Resize <mode = "linear", axes = [AXES]> (x, , , s) y = Neg (t) }"""
    check_rewrites(PASS, text.replace("AXES", "2, -1"), "y = Neg (x)", opset=18)
    check_keeps(PASS, text.replace("AXES", "3, 2"), "may differ", opset=18)


@pytest.mark.parametrize("opset", [7, 9])
def test_upsample(opset: int) -> None:
    if opset < 9:
        text = "main (float[N,2,4,5] x) => (float[A,B,C,D] y) { t = Upsample <scales = [1.0, 1.0, 1.0, 1.0]> (x) y = Neg (t) }"  # noqa: E501
    else:
        text = TEXT.replace("Resize <ATTRIBUTES> (x, , s)", "Upsample (x, s)")
    check_rewrites(PASS, text, GONE, opset=opset)


def test_resize_of_opset_10() -> None:
    check_rewrites(PASS, TEXT.replace("<ATTRIBUTES> (x, , s)", '<mode = "linear"> (x, s)'), GONE, opset=10)


@pytest.mark.parametrize(
    ("because", "attributes"),
    [
        ("may read from other places", 'coordinate_transformation_mode = "tf_crop_and_resize"'),
        (
            "may read from other places",
            'coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "ceil"',
        ),
        ("may read from other places", 'coordinate_transformation_mode = "tf_half_pixel_for_nn", mode = "linear"'),
    ],
)
def test_keeps_modes(because: str, attributes: str) -> None:
    check_keeps(PASS, TEXT.replace("ATTRIBUTES", attributes).replace("(x, , s)", "(x, s, s)"), because, opset=11)


@pytest.mark.parametrize(
    ("because", "text"),
    [
        ("a scale is not 1", TEXT.replace("ATTRIBUTES", "").replace("1, 1}", "2, 1}")),
        ("a scale is not 1", TEXT.replace("ATTRIBUTES", "").replace("1, 1}", "1.0000001, 1}")),
        ("not a constant", TEXT.replace("ATTRIBUTES", "").replace("x)", "x, float[4] s)", 1).replace(" <float[4] s = {1, 1, 1, 1}>", "")),  # noqa: E501
    ],
)  # fmt: skip
def test_keeps(because: str, text: str) -> None:
    check_keeps(PASS, text.replace("Resize <>", "Resize"), because)
