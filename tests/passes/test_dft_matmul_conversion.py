"""A Fourier transform of a fixed length that is no power of two is a product."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "dft_matmul_conversion"


def model(x: str = "B,6,1", y: str = "B,6,2", attributes: str = "axis = 1", *, kind: str = "float") -> str:
    return f"main ({kind}[{x}] x) => ({kind}[{y}] y) {{ y = DFT <{attributes}> (x) }}"


ZEROS = """main (float[B,S,6,1] x) => (float[B,S,6,2] y) <float z = {0}> {
    s = Shape (x) zeros = Expand (z, s) c = Concat <axis = -1> (x, zeros) y = DFT <axis = 2> (c) }"""
REWRITTEN = {
    "real": (model(), 1),
    "real, an odd length": (model("B,7,1", "B,7,2"), 1),
    "real, the shortest": (model("B,3,1", "B,3,2"), 1),
    "half of the frequencies": (model(y="B,4,2", attributes="axis = 1, onesided = 1"), 0),
    "half of an odd length": (model("B,7,1", "B,4,2", "axis = 1, onesided = 1"), 0),
    "complex": (model("B,6,2"), 0),
    "back": (model("B,6,2", attributes="axis = 1, inverse = 1"), 0),
    "back from real ones": (model(attributes="axis = 1, inverse = 1"), 1),
    "several axes ahead": (model("B,2,S,6,2", "B,2,S,6,2", "axis = 3"), 0),
    "an axis from the end": (model("B,S,6,1", "B,S,6,2", "axis = -2"), 1),
    "zeros beside": (ZEROS, 1),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    text, mirrored = REWRITTEN[name]
    ops = {"DFT": 0, "MatMul": 1, "Reshape": 2, "Slice": mirrored, "Concat": mirrored}
    check_rewrites(PASS, text, ops=ops, opset=17)


@pytest.mark.parametrize(
    ("constants", "inputs"),
    [("", "(x)"), ("<int64 a = {1}>", "(x, , a)"), ("<int64 n = {6}, int64 a = {1}>", "(x, n, a)")],
)
def test_axis_and_length_as_inputs(constants: str, inputs: str) -> None:
    text = f"main (float[B,6,2] x) => (float[B,6,2] y) {constants} {{ y = DFT {inputs} }}"
    check_rewrites(PASS, text, ops={"DFT": 0, "MatMul": 1}, opset=20)


def test_layers_share_a_matrix() -> None:
    text = """main (float[B,6,2] x) => (float[B,6,2] y) {
        a = DFT <axis = 1> (x) b = Abs (a) y = DFT <axis = 1> (b) }"""
    after = check_rewrites(PASS, text, ops={"DFT": 0, "MatMul": 2}, opset=17)
    matrices = {node.inputs[1] for node in after.graph if node.op_type == "MatMul"}
    assert len(matrices) == 1


LENGTH = "main (float[B,6,2] x) => (float[B,K,2] y) <int64 n = {5}> { y = DFT <axis = 1> (x, n) }"
KEPT = {
    "the gain was measured for single precision only": model(kind="double"),
    "it is not along the last axis of numbers": model("B,6,3,2", "B,6,3,2"),
    "the length is not known": model("B,N,1", "B,N,2"),
    "it is cut or padded": LENGTH,
    "there is a fast kernel for powers of two": model("B,8,1", "B,8,2"),
    "half of the frequencies is asked for otherwise": model("B,6,2", "B,4,2", "axis = 1, onesided = 1"),
    "but with columns 1 to 768": model("B,600,2", "B,600,2"),
    "its matrix would be large": model("B,5000,2", "B,5000,2"),
}


test_kept = keeps(PASS, KEPT, opset=17)


def test_kept_where_the_axis_is_the_default() -> None:
    text = "main (float[B,5,6,2] x) => (float[B,5,6,2] y) { y = DFT (x) }"
    check_keeps(PASS, text, "it is not along the last axis of numbers", opset=17)
    check_rewrites(PASS, text, ops={"DFT": 0}, opset=20)


@pytest.mark.parametrize("zero", ["{1}", "{-1}"])
def test_what_is_beside_is_no_zero(zero: str) -> None:
    check_rewrites(PASS, ZEROS.replace("{0}", zero), ops={"DFT": 0, "Slice": 0}, opset=17)
