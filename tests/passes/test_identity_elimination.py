"""Identity(x) becomes x wherever the names of inputs and outputs allow it."""

import onnx_ir as ir

from ortopt.testing import check_rewrites, parse, run

PASS = "identity_elimination"


def test_an_output_keeps_its_name() -> None:
    model = check_rewrites(
        PASS, before="main (float[N] x) => (float[N] y) { a = Relu (x) y = Identity (a) }", after="y = Relu (x)"
    )
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_an_output_keeps_its_declared_shape() -> None:
    model = check_rewrites(PASS, before="main (float[3] x) => (float[M] y) { a = Relu (x) y = Identity (a) }")
    (output,) = model.graph.outputs
    assert output.shape == ir.Shape(["M"])


def test_two_outputs_of_one_value() -> None:
    model = parse("main (float[N] x) => (float[N] y, float[N] z) { a = Relu (x) y = Identity (a) z = Identity (a) }")
    assert run(PASS, model)[0]
    assert [node.op_type for node in model.graph] == ["Relu", "Identity"]
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_an_output_without_a_declared_shape_keeps_none() -> None:
    model = check_rewrites(PASS, "main (float[N] x) => (float[] y) { t = Identity (x) y = Neg (t) }", "y = Neg (x)")
    assert model.graph.outputs[0].shape is None
