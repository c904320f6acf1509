"""Where(x > a, x, 0) becomes ThresholdedRelu(x)."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "thresholded_relu_fusion"
HEAD = "main (float[N,8] x) => (float[N,8] y)"
K = "<float k = {0.5}, float zero = {0.0}>"
EDGES = np.array([[np.nan, np.inf, -np.inf, 0.0, 0.5, 1.0, np.nextafter(np.float32(0.5), 1), -7.0]], np.float32)


@pytest.mark.parametrize("condition", ["Greater (x, k)", "Less (k, x)"])
@pytest.mark.parametrize("threshold", ["0.5", "-1.0", "0.0"])
def test_fuses(condition: str, threshold: str) -> None:
    text = f"{HEAD} {K.replace('0.5', threshold)} {{ c = {condition} y = Where (c, x, zero) }}"
    check_rewrites(PASS, text, f"y = ThresholdedRelu <alpha = {threshold}> (x)", inputs={"x": EDGES})


WRONG = "the condition is not that x is above a number"
KEPT = {
    "not strict": ("no Greater or Less", f"{HEAD} {K} {{ c = GreaterOrEqual (x, k) y = Where (c, x, zero) }}"),
    "the other way": (WRONG, f"{HEAD} {K} {{ c = Less (x, k) y = Where (c, x, zero) }}"),
    "another value": (WRONG, f"{HEAD} {K} {{ n = Neg (x) c = Greater (n, k) y = Where (c, x, zero) }}"),
    "a computed threshold": (
        WRONG,
        "main (float[8] x, float k) => (float[8] y) <float zero = {0.0}> { c = Greater (x, k) y = Where (c, x, zero) }",
    ),
    "not 0 elsewhere": (
        "it is not 0 elsewhere",
        f"{HEAD} <float k = {{0.5}}> {{ c = Greater (x, k) y = Where (c, x, k) }}",
    ),
    "a threshold for each": (
        "not one number",
        f"{HEAD} <float[8] k = {{1,2,3,4,5,6,7,8}}, float zero = {{0.0}}> "
        "{ c = Greater (x, k) y = Where (c, x, zero) }",
    ),
    "a zero that raises the rank": (
        "raise the rank",
        """main (float[8] x) => (float[1,8] y) <float k = {0.5}, float[1,1] zero = {0.0}>
        { c = Greater (x, k) y = Where (c, x, zero) }""",
    ),
    "the condition is needed": (
        "Greater's result is used elsewhere",
        f"main (float[8] x) => (float[8] y, bool[8] c) {K} {{ c = Greater (x, k) y = Where (c, x, zero) }}",
    ),
    "integers": (
        "it is no float",
        """main (int32[8] x) => (int32[8] y) <int32 k = {1}, int32 zero = {0}>
        { c = Greater (x, k) y = Where (c, x, zero) }""",
    ),
    "double precision": (
        "the kernels are for single precision",
        f"{HEAD} {K.replace('0.5', '0.3')} {{ c = Greater (x, k) y = Where (c, x, zero) }}".replace("float", "double"),
    ),
}


test_keeps = keeps(PASS, KEPT)
