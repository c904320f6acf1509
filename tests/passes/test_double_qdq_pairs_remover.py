"""Two roundings to the same grid are one, if the first saturates no earlier; to other grids they are two."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "double_qdq_pairs_remover"
WIDE = {"x": np.concatenate([np.linspace(-200, 200, 4001), [-np.inf, np.inf, -0.0]]).astype(np.float32)}


def twice(first: tuple[str, int], second: tuple[str, int], scales: tuple[str, str] = ("0.5", "0.5")) -> str:
    (one, z), (two, o) = first, second
    return f"""main (float[N] x) => ({two}[N] y)
        <float s = {{{scales[0]}}}, float r = {{{scales[1]}}}, {one} z = {{{z}}}, {two} o = {{{o}}}> {{
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = QuantizeLinear (d, r, o) }}"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("uint8", 128), ("int8", 0)),
        (("int8", -128), ("uint8", 0)),
        (("int8", 5), ("uint8", 133)),
        (("int16", 0), ("int8", 3)),
        (("int16", 0), ("uint8", 128)),
        (("uint16", 40000), ("uint8", 200)),
    ],
)
def test_the_second_saturates_first(first: tuple[str, int], second: tuple[str, int]) -> None:
    check_rewrites(PASS, twice(first, second), after="y = QuantizeLinear (x, r, o)", opset=21, inputs=WIDE)
