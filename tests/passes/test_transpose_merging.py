"""Two Transposes become one, or none."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "transpose_merging"


@pytest.mark.parametrize(
    ("first", "second", "both", "shape"),
    [("1, 2, 0", "1, 2, 0", "2, 0, 1", "C,A,B"), ("0, 2, 1", "2, 0, 1", "1, 0, 2", "B,A,C"), ("1, 2, 0", "0, 2, 1", "1, 0, 2", "B,A,C")],  # noqa: E501
)  # fmt: skip
def test_one(first: str, second: str, both: str, shape: str) -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[A,B,C] x) => (float[{shape}] y) {{
            t = Transpose <perm = [{first}]> (x) y = Transpose <perm = [{second}]> (t) }}""",
        after=f"y = Transpose <perm = [{both}]> (x)",
    )


def test_none() -> None:
    check_rewrites(
        PASS,
        before="""main (float[A,B,C] x) => (float[A,B,C] y) {
            t = Transpose <perm = [1, 2, 0]> (x) u = Transpose <perm = [2, 0, 1]> (t) y = Neg (u) }""",
        after="y = Neg (x)",
    )


def test_the_default_order_and_other_users() -> None:
    check_rewrites(
        PASS,
        before="""main (float[A,B] x) => (float[A,B] y, float[B,A] z) {
            z = Transpose (x) u = Transpose <perm = [1, 0]> (z) y = Neg (u) }""",
        after="z = Transpose (x) y = Neg (x)",
    )


def test_keeps_between_input_and_output() -> None:
    check_keeps(
        PASS,
        "main (float[A,B] x) => (float[A,B] y) { t = Transpose (x) y = Transpose (t) }",
        "a graph output must keep its own name",
    )
