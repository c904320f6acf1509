"""A Cast to the type that the value already has goes; all others stay."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "cast_elimination"


@pytest.mark.parametrize(("dtype", "to"), [("float", 1), ("double", 11), ("int64", 7), ("float16", 10), ("bool", 9)])
@pytest.mark.parametrize("shape", ["N,4", "0", ""])
def test_goes(dtype: str, to: int, shape: str) -> None:
    kind = f"{dtype}[{shape}]" if shape else dtype
    check_rewrites(
        PASS,
        before=f"main ({kind} x) => (int64[R] y) {{ a = Cast <to = {to}> (x) y = Shape (a) }}",
        after="y = Shape (x)",
    )


def test_text_and_small_types() -> None:
    for dtype, to in (("string", 8), ("bfloat16", 16), ("float8e4m3fn", 17)):
        check_rewrites(
            PASS,
            before=f"main ({dtype}[2] x) => (int64[1] y) {{ a = Cast <to = {to}> (x) y = Shape (a) }}",
            after="y = Shape (x)",
            opset=19,
            numbers=dtype == "string",
        )


def test_like_its_own_type() -> None:
    check_rewrites(
        PASS,
        before="main (float[N] x, float[M] z) => (float[N] y) { a = CastLike (x, z) y = Neg (a) }",
        after="y = Neg (x)",
    )


def test_shape_of_an_unknown_rank_does_not_matter() -> None:
    check_rewrites(
        PASS,
        before="""main (float[N] x, int64[R] s) => (float[] y) {
            a = Reshape (x, s) b = Cast <to = 1> (a) y = Neg (b) }""".replace("float[] y", "float[A,B] y"),
        ops={"Cast": 0},
        numbers=False,
    )


def test_twice_the_same() -> None:
    check_rewrites(
        PASS,
        before="main (int32[N] x) => (float[N] y) { a = Cast <to = 1> (x) b = Cast <to = 1> (a) y = Neg (b) }",
        after="a = Cast <to = 1> (x) y = Neg (a)",
    )


def test_in_a_function_where_all_calls_agree() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[N] x, {other}[N] z) => (float[N] y, float[N] w) {{ y = f.F (x) w = f.F (z) }}
        <domain: "f", opset_import: ["" : 17]>
        F (a) => (c) {{ b = Cast <to = 1> (a) c = Neg (b) }}"""
    check_rewrites(PASS, before=text.format(other="float"), ops={"Cast": 0})
    check_keeps(PASS, text.format(other="int32"), "the type is unknown")


KEPT = {
    "the type changes": "main (float[N] x) => (double[N] y) { a = Cast <to = 11> (x) y = Neg (a) }",
    "a graph output must keep its own name": "main (float[N] x) => (float[N] y) { y = Cast <to = 1> (x) }",
    "the function's caller decides to": """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[N] x) => (float[N] y) { y = f.F <to = 1> (x) }
        <domain: "f", opset_import: ["" : 17]>
        F <to> (a) => (c) { b = Cast <to: int = @to> (a) c = Neg (b) }""",
    "like another type is kept": (
        "the type changes",
        "main (float[N] x, int32[M] z) => (int32[N] y) { a = CastLike (x, z) y = Neg (a) }",
    ),
}


test_keeps = keeps(PASS, KEPT)
