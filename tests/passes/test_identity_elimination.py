"""Identity(x) becomes x wherever the names of inputs and outputs allow it."""

import onnx_ir as ir
import pytest

from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "identity_elimination"
OUTPUT = "a graph output must keep its own name"


def test_goes_between_nodes() -> None:
    check_rewrites(
        PASS,
        before="main (float[N,4] x) => (float[N,4] y) { a = Relu (x) b = Identity (a) c = Identity (b) y = Neg (c) }",
        after="a = Relu (x) y = Neg (a)",
    )


def test_an_output_keeps_its_name() -> None:
    model = check_rewrites(
        PASS, before="main (float[N] x) => (float[N] y) { a = Relu (x) y = Identity (a) }", after="y = Relu (x)"
    )
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_an_output_keeps_its_declared_shape() -> None:
    model = check_rewrites(PASS, before="main (float[3] x) => (float[M] y) { a = Relu (x) y = Identity (a) }")
    (output,) = model.graph.outputs
    assert output.shape == ir.Shape(["M"])


def test_of_a_constant() -> None:
    check_rewrites(
        PASS,
        before="main (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { b = Identity (w) y = Add (x, b) }",
        after="main (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { y = Add (x, w) }",
    )


@pytest.mark.parametrize("ending", ["int64[N]", "float", "bool[N,0]", "string[N]"])
def test_any_type(ending: str) -> None:
    check_rewrites(
        PASS,
        before=f"main ({ending} x) => (int64[R] y) {{ a = Identity (x) y = Shape (a) }}",
        after="y = Shape (x)",
    )


def test_of_a_sequence() -> None:
    check_rewrites(
        PASS,
        before="""main (float[N] x) => (int64 y) {
            s = SequenceConstruct (x, x) t = Identity (s) y = SequenceLength (t) }""",
        after="s = SequenceConstruct (x, x) y = SequenceLength (s)",
    )


def test_in_a_subgraph_of_an_outer_value() -> None:
    check_rewrites(
        PASS,
        before="""main (bool c, float[N] x) => (float[N] y) {
            a = Relu (x)
            b = Identity (a)
            y = If (c) <
                then_branch = t () => (float[N] u) { i = Identity (b) u = Neg (i) },
                else_branch = e () => (float[N] v) { v = Identity (b) }
            >
        }""",
        after="""
            a = Relu (x)
            y = If (c) <
                then_branch = t () => (float[N] u) { u = Neg (a) },
                else_branch = e () => (float[N] v) { v = Identity (a) }
            >""",
    )


KEPT = [
    "main (float[N] x) => (float[N] y) { y = Identity (x) }",
    "main (float[N] x) => (float[N] y, float[N] z) { y = Relu (x) z = Identity (y) }",
    "main () => (float[2] y) <float[2] w = {1, 2}> { y = Identity (w) }",
    "main (float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Identity (w) }",
]


@pytest.mark.parametrize("model", KEPT)
def test_keeps(model: str) -> None:
    check_keeps(PASS, model, OUTPUT)


def test_two_outputs_of_one_value() -> None:
    model = parse("main (float[N] x) => (float[N] y, float[N] z) { a = Relu (x) y = Identity (a) z = Identity (a) }")
    assert run(PASS, model)[0]
    assert [node.op_type for node in model.graph] == ["Relu", "Identity"]
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_an_output_without_a_declared_shape_keeps_none() -> None:
    model = check_rewrites(PASS, "main (float[N] x) => (float[] y) { t = Identity (x) y = Neg (t) }", "y = Neg (x)")
    assert model.graph.outputs[0].shape is None
