"""Integers that follow from known dimensions become constants; those of unknown dimensions stay computed."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.semantics import constant_tensor
from ortopt.testing import check_rewrites, parse, run

PASS = "shape_folding"


def returned(model: ir.Model, output: int = 0) -> list[int] | int:
    tensor = constant_tensor(model.graph.outputs[output])
    assert tensor is not None
    return tensor.numpy().tolist()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("y = Shape (x)", [2, 3, 4]),
        ("y = Shape <start = 1> (x)", [3, 4]),
        ("y = Shape <start = -2, end = -1> (x)", [3]),
        ("y = Shape <start = 2, end = 100> (x)", [4]),
        ("y = Shape <start = 2, end = 1> (x)", []),
        ("y = Shape <end = -9> (x)", []),
    ],
)
def test_shapes(statement: str, expected: list[int]) -> None:
    model = check_rewrites(PASS, f"main (float[2,3,4] x) => (int64[n] y) {{ {statement} }}", ops={"Shape": 0})
    assert returned(model) == expected


@pytest.mark.parametrize(("dims", "expected"), [("[2,3,4]", 24), ("[2,0,4]", 0), ("", 1), ("[N,0]", 0)])
def test_sizes(dims: str, expected: int) -> None:
    model = check_rewrites(PASS, f"main (float{dims} x) => (int64 y) {{ y = Size (x) }}", ops={"Size": 0})
    assert returned(model) == expected


def test_shapes_of_intermediate_values() -> None:
    model = check_rewrites(
        PASS,
        "main (float[N,3] x, float[3,7] w) => (int64[1] y) { p = MatMul (x, w) y = Shape <start = 1> (p) }",
        ops={"Shape": 0, "MatMul": 0},
    )
    assert returned(model) == [7]


PARTIAL = {
    "i = Constant <value_int = 1> () g = Gather (s, i) y = Mul (g, two)": 6,
    "i = Constant <value_int = -1> () g = Gather (s, i) y = Add (g, two)": 6,
    "a = Constant <value_ints = [2]> () b = Constant <value_ints = [3]> () g = Slice (s, a, b) y = Squeeze (g)": 4,
    "a = Constant <value_ints = [1, 2]> () g = Gather (s, a) y = ReduceProd <keepdims = 0> (g)": 12,
}


@pytest.mark.parametrize("body", PARTIAL)
def test_the_known_part_of_a_shape(body: str) -> None:
    model = check_rewrites(
        PASS,
        f"main (float[N,3,4] x) => (int64 y) <int64 two = {{2}}> {{ s = Shape (x) {body} }}"
        if "two" in body
        else f"main (float[N,3,4] x) => (int64 y) {{ s = Shape (x) {body} }}",
        ops={"Shape": 0},
        opset=13,
    )
    assert returned(model) == PARTIAL[body]


def test_only_what_is_needed_becomes_a_constant() -> None:
    model = check_rewrites(
        PASS,
        """
        main (float[2,3] x) => (float[a,b] y) <int64[1] two = {2}> {
            s = Shape (x)
            d = Mul (s, two)
            r = Div (d, two)
            y = Expand (x, r)
        }""",
        ops={"Expand": 1, "Shape": 0, "Mul": 0, "Div": 0},
    )
    assert len(model.graph.initializers) == 1


def test_other_integer_types() -> None:
    model = check_rewrites(
        PASS,
        "main (float[2,3] x) => (int32[n] y) { s = Shape (x) y = Cast <to = 6> (s) }",
        ops={"Shape": 0, "Cast": 0},
    )
    tensor = constant_tensor(model.graph.outputs[0])
    assert tensor is not None
    assert tensor.dtype == ir.DataType.INT32


def test_a_node_with_a_known_and_an_unknown_result() -> None:
    model = check_rewrites(
        PASS,
        """
        main (float[N,3] x) => (int64[1] a, int64[1] b) {
            s = Shape (x)
            a, b = Split <axis = 0> (s)
        }""",
        opset=13,
        ops={"Split": 1},
    )
    assert returned(model, 1) == [3]


def test_inside_a_subgraph_and_from_it() -> None:
    model = check_rewrites(
        PASS,
        """
        main (float[2,3] x, bool c) => (float[m,n] y) {
            s = Shape (x)
            y = If (c) <
                then_branch = t () => (float[m,n] p) { k = Add (s, s) p = Expand (x, s) },
                else_branch = e () => (float[m,n] q) { u = Shape (x) q = Expand (x, u) }>
        }""",
        ops={"Shape": 0},
    )
    assert "s" in model.graph.initializers


def test_inside_a_function() -> None:
    model = check_rewrites(
        PASS,
        """
        <ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[N,3] x) => (float[a,b] y) { y = f.same (x) }
        <domain: "f", opset_import: ["" : 17]>
        same (x) => (y) {
            s = Shape <start = 1> (x)
            y = Expand (x, s)
        }""",
    )
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Expand"]
    assert np.array_equal(function[0].attributes["value"].as_tensor().numpy(), [3])


def test_a_condition_may_be_longer_than_what_it_chooses_from() -> None:
    model = parse(
        "main (float[1,6] x, bool[6] c) => (int64[6] y) { s = Shape <start = 0, end = 1> (x) y = Where (c, s, s) }"
    )
    run("shape_folding", model)
    assert model.graph.outputs[0].shape == ir.Shape([6])
