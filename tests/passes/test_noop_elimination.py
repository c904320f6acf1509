"""A neutral constant goes with its node where it changes neither shape, nor type, nor the sign of a zero."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "noop_elimination"


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
