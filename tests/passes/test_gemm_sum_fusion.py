"""What is added to a Gemm becomes its C, if it has none and C would not enlarge the result."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

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


def test_what_is_added_may_come_later() -> None:
    check_rewrites(
        PASS,
        """main (float[8,M] a, float[8,4] b, float[M,4] x) => (float[M,4] y) {
            t = Gemm <transA = 1> (a, b) c = Neg (x) y = Add (t, c) }""",
        after="c = Neg (x) y = Gemm <transA = 1> (a, b, c)",
    )


HEAD = "(float[2,8] a, float[8,4] b, float[4] c) => (float[2,4] y)"
KEPT = [
    ("there are not two summands", f"{HEAD} {{ t = Gemm (a, b) y = Sum (t, c, c) }}"),
    ("there are not two summands", f"{HEAD} {{ t = Gemm (a, b) y = Sum (t) }}"),
    ("the Gemm has a C", f"{HEAD} {{ t = Gemm (a, b, c) y = Add (t, c) }}"),
    ("added to itself", f"{HEAD} {{ t = Gemm (a, b) y = Add (t, t) }}"),
    ("used elsewhere", f"{HEAD} {{ t = Gemm (a, b) u = Neg (t) y = Add (t, u) }}"),
    ("used elsewhere", "(float[2,8] a, float[8,4] b, float c) => (float[2,4] y, float[2,4] t) { t = Gemm (a, b) y = Add (t, c) }"),  # noqa: E501
    ("one way only", "(float[2,8] a, float[8,4] b, float[5,2,4] c) => (float[5,2,4] y) { t = Gemm (a, b) y = Add (t, c) }"),  # noqa: E501
    ("one way only", "(float[1,8] a, float[8,4] b, float[2,4] c) => (float[2,4] y) { t = Gemm (a, b) y = Add (t, c) }"),
    ("one way only", "(float[M,8] a, float[8,4] b, float[N,4] c) => (float[K,4] y) { t = Gemm (a, b) y = Add (t, c) }"),
    ("one way only", "(float[2,8] a, float[8,4] b, float[] c) => (float[2,4] y) { t = Gemm (a, b) y = Add (t, c) }"),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)
