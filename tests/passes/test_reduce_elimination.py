"""A reduction goes where every reduced axis is known to have one element."""

import pytest

from ortopt.testing import check_rewrites

PASS = "reduce_elimination"
ONE = "k = Constant <value_float = 1.0> ()"
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


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("made", NEVER_NEGATIVE_ZERO)
def test_sums_of_floats_that_are_never_negative_zero(op: str, made: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[1,1] x) => (float y) {{ {made} t = {op} <keepdims = 0> (v) y = Neg (t) }}",
        ops={op: 0},
    )
