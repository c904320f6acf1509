"""The figures that the policy weighs are those that the documentation tells."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.partition import estimate
from ortopt.partition.partitioning import prepare
from ortopt.testing import parse


def node(text: str, inputs: str = "float[1000] x", outputs: str = "float[1000] y") -> ir.Node:
    model = parse(f"main ({inputs}) => ({outputs}) {{ {text} }}")
    prepare(model)
    return next(iter(model.graph))


def test_the_host_takes_20_us_a_node_and_1_ns_a_byte_and_nothing_for_a_view() -> None:
    relu = node("y = Relu (x)")
    assert estimate.seconds_on_host([relu]) == pytest.approx(20e-6 + 4000e-9)
    assert estimate.seconds_on_host([relu, relu]) == pytest.approx(2 * (20e-6 + 4000e-9))
    view = node("y = Flatten (x)", outputs="float[1000,1] y")
    assert estimate.seconds_on_host([view]) == 0
    assert estimate.seconds_on_cpu([view]) == 0
    assert estimate.seconds_on_cpu([relu]) == pytest.approx(1e-6)


def test_a_call_takes_10_us_an_argument_1_us_and_a_session_2_ms_over_100_calls() -> None:
    assert estimate.seconds_of_call(0) == pytest.approx(10e-6 + 20e-6)
    assert estimate.seconds_of_call(5) - estimate.seconds_of_call(0) == pytest.approx(5e-6)


def test_a_copy_takes_20_us_and_its_bytes() -> None:
    values = node("y = Relu (x)", "float[2000000] x", "float[2000000] y").outputs
    assert estimate.seconds_of_copies(values) == pytest.approx(20e-6 + 1e-3)
    assert estimate.seconds_of_copies([]) == 0


@pytest.mark.parametrize(
    ("type_", "nbytes"),
    [
        ("float[3]", 12),
        ("double[3,0]", 0),
        ("float16[N,2]", 64 * 2 * 2),
        ("string[3]", 24),
        ("uint4[3]", 1),
        ("float", 4),
        ("seq(float[3])", 4096),
        ("optional(float[3])", 4096),
        ("float[]", 4096),
    ],
)
def test_sizes(type_: str, nbytes: int) -> None:
    """Unknown dimensions are typical ones; what has no shape is a page."""
    found = node("y = Identity (x)", f"{type_} x", f"{type_} y")
    assert estimate.nbytes(found.inputs[0]) == nbytes


@pytest.mark.parametrize(
    ("op", "heavy"),
    [
        ("MatMul", True),
        ("Relu", False),
        ("com.microsoft.Gelu", False),
        ("com.microsoft.Attention", True),
        ("elsewhere.Gelu", True),
        ("ai.onnx.ml.Binarizer", False),
    ],
)
def test_what_is_worth_a_session_of_its_own(op: str, heavy: bool) -> None:
    imports = '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1, "elsewhere" : 1, "ai.onnx.ml" : 3]>'
    operands = "x, x" if op == "MatMul" else "x"
    model = parse(f"{imports} main (float[2,2] x) => (float[2,2] y) {{ y = {op} ({operands}) }}")
    assert estimate.is_heavy(next(iter(model.graph))) is heavy
