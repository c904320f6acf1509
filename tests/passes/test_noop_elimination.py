"""A neutral constant goes with its node where it changes neither shape, nor type, nor the sign of a zero."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "noop_elimination"
ZERO = "adding +0.0 turns -0.0 into +0.0"


@pytest.mark.parametrize("constant", ["", "[1]", "[4]", "[1,4]", "[1,1]"])
@pytest.mark.parametrize(
    ("op", "content"),
    [
        ("Mul (a, c)", 1),
        ("Mul (c, a)", 1),
        ("Div (a, c)", 1),
        ("Pow (a, c)", 1),
        ("Sub (a, c)", 0),
        ("Add (a, c)", -0.0),
        ("Add (c, a)", -0.0),
    ],
)
def test_floats(op: str, content: float, constant: str) -> None:
    elements = ", ".join([str(content)] * (4 if "4" in constant else 1))
    check_rewrites(
        PASS,
        before=f"""main (float[N,4] x) => (float[N,4] y) <float{constant} c = {{{elements}}}> {{
            a = Neg (x) b = {op} y = Neg (b) }}""",
        after="main (float[N,4] x) => (float[N,4] y) { a = Neg (x) y = Neg (a) }",
        inputs={"x": np.array([[0.0, -0.0, np.nan, -np.inf]], np.float32)},
    )


@pytest.mark.parametrize("dtype", ["int64", "int32", "double", "float16"])
@pytest.mark.parametrize(("op", "content"), [("Mul", 1), ("Div", 1), ("Add", 0), ("Sub", 0), ("Pow", 1)])
def test_types(op: str, content: int, dtype: str) -> None:
    if (op == "Add" and dtype in ("double", "float16")) or (op == "Pow" and dtype in ("float16", "int64")):
        return
    bits = 15360 if dtype == "float16" and content else content  # text holds the bits of a float16
    check_rewrites(
        PASS,
        before=f"""main ({dtype}[N] x) => ({dtype}[N] y) <{dtype} c = {{{bits}}}> {{
            a = Abs (x) b = {op} (a, c) y = Abs (b) }}""",
        after=f"main ({dtype}[N] x) => ({dtype}[N] y) {{ a = Abs (x) y = Abs (a) }}",
    )


def test_an_exponent_of_another_type() -> None:
    check_rewrites(
        PASS,
        before="main (float[N] x) => (float[N] y) <int64 c = {1}> { b = Pow (x, c) y = Neg (b) }",
        after="main (float[N] x) => (float[N] y) { y = Neg (x) }",
    )


def test_a_zero_size_operand() -> None:
    check_rewrites(
        PASS,
        before="main (float[0,4] x) => (float[0,4] y) <float[1,1] c = {1}> { b = Mul (x, c) y = Neg (b) }",
        after="main (float[0,4] x) => (float[0,4] y) { y = Neg (x) }",
    )


def test_unknown_rank_and_a_scalar() -> None:
    check_rewrites(
        PASS,
        before="""main (float[N] x, int64[R] s) => (float[A] y) <float c = {1}> {
            a = Reshape (x, s) b = Mul (a, c) y = Neg (b) }""",
        ops={"Mul": 0},
        numbers=False,
    )


NO_CONSTANT = "it is not a constant"
KEPT = [
    (ZERO, "(float[4] x) => (float[4] y) <float c = {0}> { a = Add (x, c) y = Neg (a) }"),
    (ZERO, "(float[2] x) => (float[2] y) <float[2] c = {-0.0, 0.0}> { a = Add (x, c) y = Neg (a) }"),
    ("subtracting -0.0", "(float[4] x) => (float[4] y) <float c = {-0.0}> { a = Sub (x, c) y = Neg (a) }"),
    ("enlarges the rank", "(float[4] x) => (float[1,4] y) <float[1,1] c = {1}> { a = Mul (x, c) y = Neg (a) }"),
    ("may enlarge the result", "(float[1] x) => (float[2] y) <float[2] c = {1, 1}> { a = Mul (x, c) y = Neg (a) }"),
    ("may enlarge the result", "(float[N] x) => (float[2] y) <float[2] c = {1, 1}> { a = Mul (x, c) y = Neg (a) }"),
    ("the constant is empty", "(float[1] x) => (float[0] y) <float[0] c = {}> { a = Mul (x, c) y = Neg (a) }"),
    ("it is not 1", "(float[2] x) => (float[2] y) <float[2] c = {1, 2}> { a = Mul (x, c) y = Neg (a) }"),
    (NO_CONSTANT, "(float[2] x) => (float[2] y) <float c = {1}> { a = Div (c, x) y = Neg (a) }"),
    (NO_CONSTANT, "(int32[2] x) => (int32[2] y) <int32 c = {0}> { a = Sub (c, x) y = Neg (a) }"),
    (NO_CONSTANT, "(float[2] x) => (float[2] y) <float c = {1}> { a = Pow (c, x) y = Neg (a) }"),
    ("rounds integers above 2^53", "(int64[1] x) => (int64[1] y) <int64 c = {1}> { a = Pow (x, c) y = Neg (a) }"),
    (NO_CONSTANT, "(float[2] x, float c) => (float[2] y) <float c = {1}> { a = Mul (x, c) y = Neg (a) }"),
    ("keep its own name", "(float[2] x) => (float[2] y) <float c = {1}> { y = Mul (x, c) }"),
    (
        "the shape is unknown",
        """main (float[N] x, int64[R] s) => (float[A] y) <float[1] c = {1}> {
            a = Reshape (x, s) b = Mul (a, c) y = Neg (b) }""",
    ),
    ("the constant may enlarge the result", "main (bool[N] x) => (bool[2] y) <bool[2] t = {1, 1}> { y = And (x, t) }"),
]


test_keeps = keeps(PASS, KEPT)


@pytest.mark.parametrize("operation", ["And (x, t)", "And (t, x)", "Or (x, f)", "Or (f, x)", "Xor (x, f)"])
def test_truth(operation: str) -> None:
    text = (
        "main (bool[2] x) => (bool[2] y) {{ {0} = Constant <value = bool {{{1}}}> () n = Not (x) m = {2} y = Not (m) }}"
    )
    which = "t" if "t" in operation else "f"
    before = text.format(which, int(which == "t"), operation.replace("x", "n"))
    check_rewrites(PASS, before=before, after="n = Not (x) y = Not (n)")


@pytest.mark.parametrize(
    ("operation", "because"),
    [("And (x, f)", "it is not 1"), ("Or (x, t)", "it is not 0"), ("Xor (t, x)", "it is not 0")],
)
def test_truth_that_is_not_neutral(operation: str, because: str) -> None:
    check_keeps(
        PASS, f"main (bool[2] x) => (bool[2] y) <bool t = {{1}}, bool f = {{0}}> {{ y = {operation} }}", because
    )
