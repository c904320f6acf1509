"""Structural checks: what is fine though it looks odd, and what is wrong in memory only."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from ortopt.errors import InvalidModelError
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import load
from tests.serialization import models

IF = "if (bool c, float[2] x) => (float[2] y) {{ t = Neg(x) y = If (c) <then_branch = {}, else_branch = {}> }}"
PLAIN = "b () => (float[2] u) { u = Abs(x) }"


ACCEPTED = [
    "g (float[2] x) => (float[2] y, float[2] y) { y = Neg(x) }",
    "g (float[2] x) => (float[2] x) { }",
    "g (float[2] x) => (float[2] y) { y = NoSuchOperator(x) }",
    IF.format("a () => (float[2] y) { y = Abs(x) }", PLAIN),
    IF.format("a () => (float[2] u) <float[2] t = {1, 2}> { u = Neg(t) }", PLAIN),
    "g (bool c, float[2] t) => (float[2] y)"
    " { y = If (c) <then_branch = a () => (float[2] u) { z = Abs(t) u = Neg(z) }, else_branch ="
    " b () => (float[2] v) { v = Abs(t) }> z = Neg(y) }",
]


@pytest.mark.parametrize("body", ACCEPTED)
def test_accepted(body: str) -> None:
    assert validate(load(models.text(body)))


def test_unsorted_nodes_are_sorted() -> None:
    loaded = load(models.text("g (float[2] x) => (float[2] y) { y = Neg(b) b = Abs(a) a = Relu(x) }"))
    assert [node.op_type for node in loaded.graph] == ["Relu", "Abs", "Neg"]


def test_a_subgraph_that_uses_what_comes_later_is_sorted() -> None:
    loaded = load(
        models.text(
            "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(t) },"
            " else_branch = b () => (float[2] v) { v = Abs(t) }> t = Relu(x) }"
        )
    )
    assert [node.op_type for node in loaded.graph] == ["Relu", "If"]


def test_unsorted_models_in_memory_are_sorted_in_a_copy() -> None:
    source = ir.from_proto(models.text("g (float[2] x) => (float[2] y) { y = Neg(b) b = Abs(x) }"))
    assert not validate(source, any_order=True)
    with pytest.raises(InvalidModelError, match="before it is computed"):
        validate(source)
    assert [node.op_type for node in load(source).graph] == ["Abs", "Neg"]
    assert [node.op_type for node in source.graph] == ["Neg", "Abs"]


def test_functions_that_call_one_function_twice_are_fine() -> None:
    proto = models.model([helper.make_node("A", ["x"], ["y"], domain="f")])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    proto.opset_import.append(imports[1])
    twice = [helper.make_node("B", ["a"], ["t"], domain="f"), helper.make_node("B", ["t"], ["b"], domain="f")]
    proto.functions.append(helper.make_function("f", "A", ["a"], ["b"], twice, imports))
    once = [helper.make_node("Neg", ["a"], ["b"])]
    proto.functions.append(helper.make_function("f", "B", ["a"], ["b"], once, imports))
    assert len(load(proto).functions) == 2


def test_initializers_of_functions_are_refused_by_name() -> None:
    source = ir.from_proto(models.weights())
    graph = next(iter(source.functions.values())).graph
    graph.register_initializer(ir.Value(name="q", const_value=ir.tensor(np.zeros(2), name="q")))
    with pytest.raises(InvalidModelError, match="function 'F' has initializers"):
        load(source)


def test_a_hidden_capture_is_refused() -> None:
    source = ir.from_proto(models.text(IF.format("a () => (float[2] u) { v = Abs(t) u = Neg(v) }", PLAIN)))
    branch = next(iter(source.graph.all_nodes()))
    assert branch is not None
    inner = source.graph[1].attributes["then_branch"].as_graph()
    inner[0].outputs[0].name = "t"
    with pytest.raises(InvalidModelError, match=r"named 't'|hides"):
        validate(source)


def test_initializers_without_data_are_refused() -> None:
    source = ir.from_proto(models.weights())
    source.graph.initializers["w"].const_value = None
    with pytest.raises(InvalidModelError, match="'w' has no data"):
        validate(source)


@pytest.mark.parametrize("depth", [25, 500])
def test_deep_nesting_ends_in_a_model_or_in_one_line(depth: int) -> None:
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    condition = ir.Value(name="c", type=ir.TensorType(ir.DataType.BOOL))
    node = ir.node("Identity", [value])
    node.outputs[0].name = "r"
    for level in range(depth):
        graph = ir.Graph([], node.outputs, nodes=[node], name=f"g{level}")
        node = ir.node("If", [condition], attributes={"then_branch": graph, "else_branch": _plain_branch(value)})
        node.outputs[0].name = f"r{level}"
    outer = ir.Graph([value, condition], node.outputs, nodes=[node], opset_imports={"": 17})
    source = ir.Model(outer, ir_version=8)
    assert validate(source)
    try:
        load(source)
    except InvalidModelError as error:
        assert "nested" in str(error) or "copied" in str(error)
        assert len(str(error)) < 600
        assert depth == 500


def _plain_branch(value: ir.Value) -> ir.Graph:
    node = ir.node("Identity", [value])
    return ir.Graph([], node.outputs, nodes=[node])


def test_a_file_of_deeply_nested_graphs_ends_in_one_line() -> None:
    assert load(models.nested_ifs(20))
    with pytest.raises(InvalidModelError, match="nested"):
        load(_wrapped(models.nested_ifs(20), 60))


def _wrapped(proto: onnx.ModelProto, depth: int) -> bytes:
    from ortopt.serialization.wire import field

    graph = proto.graph.SerializeToString()
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(2, b"y") + field(4, b"If") + field(5, attribute))
    return b"\x08\x08" + field(7, graph) + field(8, b"\x10\x11")
