"""A reduction goes where every reduced axis is known to have one element."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "reduce_elimination"
ONE = "k = Constant <value_float = 1.0> ()"
MINUS_ZERO = "m = Constant <value_float = -0.0> ()"
OPS = ["ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("keep", [1, 0])
def test_axes_of_one_element(op: str, opset: int, keep: int) -> None:
    is_input = opset >= (13 if op == "ReduceSum" else 18)
    constants = "<int64[2] a = {-1, 1}>" if is_input else ""
    node = f"{op} <keepdims = {keep}> (x, a)" if is_input else f"{op} <axes = [-1, 1], keepdims = {keep}> (x)"
    shape = "N,1,3,1" if keep else "N,3"
    check_rewrites(
        PASS,
        f"main (int32[N,1,3,1] x) => (int32[{shape}] y) {constants} {{ t = {node} y = Neg (t) }}",
        ops={op: 0, "Squeeze": 1 - keep},
        opset=opset,
    )


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceProd"])
def test_floats_come_through_as_they_are(op: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[1,4] x) => (float[1,4] y) {{ t = {op} <axes = [0]> (x) y = Neg (t) }}",
        ops={op: 0},
        inputs={"x": np.float32([[-0.0, 0.0, np.nan, -np.inf]])},
    )


NEVER_NEGATIVE_ZERO = [
    "v = Abs (x)",
    "v = Mul (x, x)",
    "a = Exp (x) b = Neg (x) v = Add (b, a)",
    f"{ONE} v = Add (x, k)",
    f"{ONE} a = Add (x, k) b = Transpose (a) c = Sub (b, x) s = Constant <value_ints = [1, 1]> () v = Reshape (c, s)",
    "a = Cast <to = 7> (x) v = Cast <to = 1> (a)",
    "a = Cast <to = 9> (x) v = Cast <to = 1> (a)",
    "a = Exp (x) b = Neg (x) c = Add (b, a) k = Constant <value_ints = [1, 1]> () v = Tile (c, k)",
    "a = Abs (x) k = Constant <value = int64[1,1] {0}> () v = GatherElements (a, k)",
]
MAYBE_NEGATIVE_ZERO = [
    "v = Relu (x)",
    f"{ONE} v = Mul (x, k)",
    f"{MINUS_ZERO} v = Add (x, m)",
    f"{ONE} {MINUS_ZERO} a = Neg (k) b = Sub (x, m) v = Sub (b, k)",
]


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("made", NEVER_NEGATIVE_ZERO)
def test_sums_of_floats_that_are_never_negative_zero(op: str, made: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[1,1] x) => (float y) {{ {made} t = {op} <keepdims = 0> (v) y = Neg (t) }}",
        ops={op: 0},
    )


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("made", MAYBE_NEGATIVE_ZERO)
def test_sums_of_floats_that_may_be_negative_zero(op: str, made: str) -> None:
    check_keeps(
        PASS,
        f"main (float[1,1] x) => (float y) {{ {made} t = {op} <keepdims = 0> (v) y = Neg (t) }}",
        "it turns -0.0 into +0.0",
    )


def test_all_axes() -> None:
    check_rewrites(
        PASS,
        "main (int32[1,1] x) => (int32 y) { t = ReduceSum <keepdims = 0> (x) y = Neg (t) }",
        ops={"ReduceSum": 0, "Squeeze": 1},
    )


def test_a_scalar() -> None:
    check_rewrites(PASS, "main (int32 x) => (int32 y) { t = ReduceMax (x) y = Neg (t) }", after="y = Neg (x)")


def test_no_axes_and_none_wanted() -> None:
    check_rewrites(
        PASS,
        """main (float[N,4] x) => (float[N,4] y) <int64[0] a = {}> {
            t = ReduceSum <noop_with_empty_axes = 1, keepdims = 0> (x, a) y = Neg (t) }""",
        after="main (float[N,4] x) => (float[N,4] y) { y = Neg (x) }",
    )


SEVERAL = "it reduces several elements, or none"
KEPT = [
    (SEVERAL, "(float[N,4] x) => (float[A,B] y) <int64[0] a = {}> { t = ReduceSum (x, a) y = Neg (t) }"),
    (SEVERAL, "(float[N,4] x) => (float[A,B] y) { t = ReduceMax (x) y = Neg (t) }"),
    (SEVERAL, "(float[N,4] x) => (float[1,4] y) { t = ReduceMax <axes = [0]> (x) y = Neg (t) }"),
    (SEVERAL, "(float[0,4] x) => (float[1,4] y) { t = ReduceSum <keepdims = 1> (x) y = Neg (t) }"),
    (
        "rounds integers above 2^53",
        "(int64[1,4] x) => (int64[4] y) { t = ReduceMean <axes = [0], keepdims = 0> (x) y = Neg (t) }",
    ),
    ("rounds integers above 2^53", "(uint64[1] x) => (uint64 y) { t = ReduceProd <keepdims = 0> (x) y = Abs (t) }"),
    ("the axes are not known", "(float[1,4] x, int64[1] a) => (float[A,B] y) { t = ReduceSum (x, a) y = Neg (t) }"),
    ("the shape is unknown", "(float[] x) => (float[] y) { t = ReduceMax <axes = [0]> (x) y = Neg (t) }"),
    (None, "(float[1] x) => (float[1] y) { t = ReduceL1 (x) y = Neg (t) }"),
    (None, "(float[1] x) => (float[1] y) { t = ReduceLogSumExp (x) y = Neg (t) }"),
]


test_keeps = keeps(PASS, KEPT)
