"""What is done twice is done once, or not at all."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "repeated_activation_elimination"
SPECIAL = {"x": np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.5], np.float32)}


@pytest.mark.parametrize("op", ["Relu", "Abs", "Ceil", "Floor", "Round", "Sign"])
def test_once(op: str) -> None:
    check_rewrites(
        PASS,
        before=f"main (float[N] x) => (float[N] y) {{ a = {op} (x) b = {op} (a) c = {op} (b) y = Exp (c) }}",
        after=f"a = {op} (x) y = Exp (a)",
        inputs=SPECIAL,
    )


@pytest.mark.parametrize(("op", "dtype"), [("Neg", "float"), ("Neg", "int32"), ("Not", "bool")])
def test_back_again(op: str, dtype: str) -> None:
    check_rewrites(
        PASS,
        before=f"main ({dtype}[N] x) => ({dtype}[N] y) {{ a = {op} (x) b = {op} (a) y = {op} (b) }}",
        after=f"y = {op} (x)",
    )


def test_an_output_between() -> None:
    check_rewrites(
        PASS,
        before="main (float[N] x) => (float[N] a, float[N] y) { a = Neg (x) b = Neg (a) y = Exp (b) }",
        after="a = Neg (x) y = Exp (x)",
    )


@pytest.mark.parametrize("ops", [("Relu", "Abs"), ("Neg", "Abs")])
def test_keeps(ops: tuple[str, str]) -> None:
    check_keeps(PASS, f"main (float[N] x) => (float[N] y) {{ a = {ops[0]} (x) y = {ops[1]} (a) }}", "comes before")
