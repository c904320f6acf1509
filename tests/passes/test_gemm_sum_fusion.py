"""What is added to a Gemm becomes its C, if it has none and C would not enlarge the result."""

import pytest

from ortopt.testing import check_rewrites

PASS = "gemm_sum_fusion"


@pytest.mark.parametrize("c", ["float", "float[4]", "float[1,4]", "float[M,1]", "float[M,4]"])
@pytest.mark.parametrize("add", ["Add (t, c)", "Add (c, t)", "Sum (t, c)", "Sum (c, t)"])
def test_fuses(c: str, add: str) -> None:
    check_rewrites(
        PASS,
        f"""main (float[M,8] a, float[8,4] b, {c} c) => (float[M,4] y) {{
            t = Gemm <alpha = 2.0, beta = 3.0> (a, b) y = {add} }}""",
        after="y = Gemm <alpha = 2.0> (a, b, c)",
    )
