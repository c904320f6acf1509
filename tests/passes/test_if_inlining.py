"""An If with a constant condition gives way to the branch that it takes."""

import onnx_ir as ir

from ortopt.testing import check_rewrites, parse, run

PASS = "if_inlining"


def test_a_wrong_declaration_stays_and_hinders_nothing() -> None:
    text = """main (float[2] x) => (float[3] y) <bool c = {1}> {
        y = If (c) <
            then_branch = t () => (float[2] u) <float[2] w = {1, 2}> { i = Add (x, w) u = Neg (i) },
            else_branch = e () => (float[3] v) <float[3] v = {1, 2, 3}> { }
        >
    }"""
    model = parse(text)
    assert run(PASS, model)[0]
    assert [node.op_type for node in model.graph] == ["Add", "Neg"]
    assert model.graph.outputs[0].shape == ir.Shape([3])


def test_names_and_types_survive() -> None:
    model = check_rewrites(
        PASS,
        """main (float[N] x) => (float[N] y) <bool c = {1}> {
        z = If (c) <
            then_branch = t () => (float[N] u) { i = Neg (x) u = Exp (i) },
            else_branch = e () => (float[N] v) { v = Tanh (x) }
        >
        y = Floor (z)
    }""",
    )
    values = [value for node in model.graph for value in node.outputs]
    assert [value.name for value in values][1:] == ["z", "y"]
    assert all(value.dtype == ir.DataType.FLOAT for value in values)
