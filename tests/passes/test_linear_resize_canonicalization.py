"""Computed sizes that are multiples of an image's own become scales."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "linear_resize_canonicalization"


def enlarged(
    attributes: str = 'mode = "linear"', other: str = "N,3,8,15", sizes: str = "s = Shape (z)", constants: str = ""
) -> str:
    """An image that becomes as large as another one."""
    return (
        f"main (float[N,3,4,5] x, float[{other}] z) => (float[A,B,C,D] y) {constants}"
        f" {{ {sizes} y = Resize <{attributes}> (x, , , s) }}"
    )


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
def test_as_large_as_another_image(mode: str, coordinates: str) -> None:
    attributes = f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}"'
    check_rewrites(
        PASS,
        enlarged(attributes),
        after="main (float[N,3,4,5] x, float[N,3,8,15] z) => (float[A,B,C,D] y) <float[4] s = {1, 1, 2, 3}>"
        f" {{ y = Resize <{attributes}> (x, , s) }}",
    )


def test_multiples_that_are_computed() -> None:
    text = enlarged(sizes="n = Shape (x) s = Mul (n, k)", constants="<int64[4] k = {1, 1, 2, 3}>").replace(
        "float[N,3,4,5] x", "float[N,3,H,W] x"
    )
    check_rewrites(PASS, text, ops={"Resize": 1, "Mul": 0, "Shape": 0})


def test_some_axes() -> None:
    attributes, constants = 'mode = "linear", axes = [3, 2]', "<int64[2] k = {3, 2}>"
    text = enlarged(attributes, sizes="n = Shape (z) s = Gather (n, k)", constants=constants)
    check_rewrites(PASS, text, ops={"Resize": 1, "Shape": 0}, opset=18)


def test_opset_11() -> None:
    text = enlarged(constants="<float[0] e = {}>").replace("(x, , , s)", "(x, e, e, s)")
    check_rewrites(PASS, text, ops={"Resize": 1, "Shape": 0}, opset=11)


STAYS = {
    "is not known to be a multiple": enlarged(other="N,3,9,15"),
    "it repeats elements": enlarged('mode = "nearest"'),
    "no sizes are computed for it": enlarged(sizes="t = Neg (z)", constants="<int64[4] s = {1, 3, 8, 15}>"),
    "the sizes are only bounds": enlarged('mode = "linear", keep_aspect_ratio_policy = "not_larger"'),
}


test_it_stays = keeps(PASS, STAYS, opset=18)
