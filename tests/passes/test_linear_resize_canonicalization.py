"""Computed sizes that are multiples of an image's own become scales."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites

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
