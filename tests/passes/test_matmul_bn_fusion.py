"""BatchNormalization after MatMul goes into its matrix, if the columns are the channels."""

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "matmul_bn_fusion"
B = "float[2,3] w = {1, -2, 3, 0.5, 0.25, 4}"
NORM = "float[3] g = {1, 2, -3}, float[3] b = {0, 1, 2}, float[3] m = {0.5, 0.25, 2}, float[3] v = {1, 4, 0.25}"
BN = "BatchNormalization <epsilon = 0.1> (%s, g, b, m, v)"


@pytest.mark.parametrize(
    ("result", "lists", "path", "counts"),
    [
        ("N,3", "", "s = Identity (t)", {}),
        ("N,3,1,1", ", int64[2] p = {2, 3}", "s = Unsqueeze (t, p)", {"Unsqueeze": 1}),
        ("A,3,B", ", int64[3] p = {-1, 3, 1}", "s = Reshape (t, p)", {"Reshape": 1}),
        ("N,3", "", "u = Transpose (t) s = Transpose <perm = [1, 0]> (u)", {"Transpose": 2}),
        ("A,3,N", ", int64[1] p = {0}", "u = Unsqueeze (t, p) s = Transpose <perm = [0, 2, 1]> (u)", {"Transpose": 1}),
    ],
)
def test_fuses(result: str, lists: str, path: str, counts: dict[str, int]) -> None:
    at = "s"
    if "Identity" in path:
        path, at = "", "t"
    check_rewrites(
        PASS,
        f"main (float[N,2] x) => (float[{result}] y) <{B}, {NORM}{lists}> {{ t = MatMul (x, w) {path} y = {BN % at} }}",
        ops={"Gemm": 1, "MatMul": 0, "BatchNormalization": 0, **counts},
    )


@pytest.mark.parametrize(
    ("given", "result", "targets", "path"),
    [
        ("5,N,2", "A,3", "", "s = Flatten <axis = 2> (t)"),
        ("N,5,2", "N,3,5", "", "s = Transpose <perm = [0, 2, 1]> (t)"),
        ("N,5,7,2", "A,3", ", int64[2] p = {-1, 3}", "s = Reshape (t, p)"),
        ("N,5,1,2", "A,3,1,1", ", int64[4] p = {-1, 3, 1, 1}", "u = Flatten <axis = 3> (t) s = Reshape (u, p)"),
    ],
)
def test_a_stack_of_matrices(given: str, result: str, targets: str, path: str) -> None:
    check_rewrites(
        PASS,
        f"""main (float[{given}] x) => (float[{result}] y) <{B}, {NORM}{targets}> {{
            t = MatMul (x, w) {path} y = {BN % "s"} }}""",
        ops={"Gemm": 0, "MatMul": 1, "Add": 1, "BatchNormalization": 0},
    )


KEPT = [
    # ONNX Runtime normalizes the columns here, and not the rows that the transposed product has there
    ("the columns are not the channels", f"(float[3,2] x) => (float[3,3] y) <{B}, {NORM}> {{ t = MatMul (x, w) s = Transpose (t) y = {BN % 's'} }}"),  # noqa: E501
    ("may be cut or joined", f"(float[3,2] x) => (float[1,3,3] y) <{B}, {NORM}, int64[1] p = {{9}}, int64[3] q = {{1, 3, 3}}> {{ t = MatMul (x, w) r = Reshape (t, p) s = Reshape (r, q) y = {BN % 's'} }}"),  # noqa: E501
    ("the columns are not the channels", f"(float[3,2] x) => (float[1,3,3] y) <{B}, {NORM}, int64[3] p = {{1, 3, 3}}> {{ t = MatMul (x, w) s = Reshape (t, p) y = {BN % 's'} }}"),  # noqa: E501
    ("the columns are not the channels", f"(float[5,3,2] x) => (float[5,3,3] y) <{B}, {NORM}> {{ t = MatMul (x, w) y = {BN % 't'} }}"),  # noqa: E501
    ("it is not a constant", f"(float[N,2] x, float[2,3] w) => (float[N,3] y) <{NORM}> {{ t = MatMul (x, w) y = {BN % 't'} }}"),  # noqa: E501
    ("used elsewhere", f"(float[N,2] x) => (float[N,3] y, float[N,3] t) <{B}, {NORM}> {{ t = MatMul (x, w) y = {BN % 't'} }}"),  # noqa: E501
    ("in training mode", f"(float[N,2] x) => (float[N,3] y) <{B}, {NORM}> {{ t = MatMul (x, w) y, p, q = BatchNormalization <training_mode = 1> (t, g, b, m, v) }}"),  # noqa: E501
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_keeps_scales_that_float16_has_not_in_weights() -> None:
    tiny = NORM.replace("g = {1, 2, -3}", "g = {0.000001, 0.000002, 0.000003}")
    text = f"main (float[N,2] x) => (float[N,3] y) <{B}, {tiny}> {{ t = MatMul (x, w) y = {BN % 't'} }}"
    check_rewrites(PASS, text)
    check_keeps(PASS, text, "would vanish in float16", options=Options(float16=True))
