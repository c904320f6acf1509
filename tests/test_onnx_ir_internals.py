"""onnx-ir's private names mean what we take them for; a release that renames one fails here first.

Read in onnx-ir 1.1.0: where a test fails with another release, `ortopt.onnx_ir_internals` is what to adapt.
"""

from __future__ import annotations

import ast
import inspect
from collections import UserDict
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir import _cloner, _core, _graph_containers, _linked_list, _name_authority

from ortopt import onnx_ir_internals
from ortopt.cancellation import NEVER
from ortopt.onnx_ir_internals import (
    attributes_of,
    clone,
    fill,
    first_use,
    get_meta,
    initializers_of,
    is_needed,
    meta_of,
    output_count,
    plain_dict,
    previous_node,
    properties_of,
    replace_input,
    set_outputs,
    trivially_same_type,
    unlink,
    use_count,
)

READ_IN = "1.1.0"
"""The release of onnx-ir in which the private names were read."""

ROOT = Path(__file__).parents[1]


def objects() -> dict[str, object]:
    """One object of each class of onnx-ir that is looked into."""
    graph, first, _ = chain()
    value = first.outputs[0]
    value.meta["a"] = 1
    return {
        "Value": value,
        "Node": first,
        "Graph": graph,
        "Shape": ir.Shape([1]),
        "outputs": graph.outputs,
        "list": graph._nodes,
        "attributes": first.attributes,
        "metadata": value._metadata,
    }


PINNED = {
    "Value": [
        *("_uses", "_add_usage", "_remove_usage", "_producer", "_index", "_type", "_shape", "_const_value"),
        *("_metadata", "_metadata_props", "_is_graph_input", "_is_graph_output"),
    ],
    "Node": [
        *("_inputs", "_outputs", "_attributes", "_op_type", "_domain", "_drop_sharding_for_value"),
        *("_metadata", "_metadata_props"),
    ],
    "Graph": ["_nodes", "_initializers", "_name_authority"],
    "Shape": ["_dims"],
    "outputs": ["_ref_counter"],
    "list": ["_value_ids_to_boxes"],
    "attributes": ["data"],
    "metadata": ["data"],
}
"""The names that `ortopt.onnx_ir_internals` uses, by what has them."""


def private_names(*modules: ModuleType) -> set[str]:
    """The private attributes and methods that the classes of some modules have."""
    names = set()
    for module in modules:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def foreign_attributes(tree: ast.Module) -> list[ast.Attribute]:
    """The attributes that a file asks objects for, those of its own classes left out."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in PINNED.items() for name in names])
def test_every_private_name_exists(owner: str, name: str) -> None:
    there = hasattr(objects()[owner], name)
    assert there, f"onnx-ir {version('onnx-ir')} has no {name}, which onnx-ir {READ_IN} has: {owner}"


def test_every_private_name_that_is_used_is_pinned() -> None:
    tree = ast.parse(inspect.getsource(onnx_ir_internals))
    used = {node.attr for node in foreign_attributes(tree) if node.attr.startswith("_")}
    assert used <= {name for names in PINNED.values() for name in names}


def test_nothing_else_looks_behind_the_public_names() -> None:
    private = private_names(_core, _graph_containers, _linked_list, _name_authority, _cloner)
    assert {"_uses", "_inputs", "_nodes", "_metadata"} <= private
    wrapped = {"attributes", "initializers", "meta", "metadata_props"}
    for folder in ("ortopt", "transformers"):
        for path in (ROOT / folder).rglob("*.py"):
            where = path.relative_to(ROOT)
            if path.name == "onnx_ir_internals.py" or "transformers" in where.parts[1:]:
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in foreign_attributes(tree):
                assert node.attr not in private, f"{where}:{node.lineno} asks onnx-ir for {node.attr}"
                behind = node.attr == "data" and isinstance(node.value, ast.Attribute) and node.value.attr in wrapped
                assert not behind, f"{where}:{node.lineno} looks behind {ast.unparse(node.value)}"
            for line in ast.walk(tree):
                module = line.module if isinstance(line, ast.ImportFrom) else None
                assert not (module or "").startswith("onnx_ir._"), f"{where}:{line.lineno} imports {module}"


def chain():
    x = ir.Value(name="x")
    first = ir.node("Relu", [x])
    second = ir.node("Add", [first.outputs[0], first.outputs[0]])
    return ir.Graph([x], second.outputs, nodes=[first, second], opset_imports={"": 17}), first, second


def test_uses_are_counted_as_onnx_ir_tells_them():
    graph, first, second = chain()
    value = first.outputs[0]
    assert use_count(value) == len(value.uses()) == 2
    assert first_use(value) == value.uses()[0] == (second, 0)
    assert (use_count(second.outputs[0]), first_use(second.outputs[0])) == (0, None)
    assert use_count(graph.inputs[0]) == 1


def test_uses_in_subgraphs_count():
    graph, first, _ = chain()
    inner = ir.node("Neg", [first.outputs[0]])
    body = ir.Graph([], inner.outputs, nodes=[inner])
    graph.append(ir.node("If", [graph.inputs[0]], {"then_branch": body}))
    assert use_count(first.outputs[0]) == 3


def test_the_node_before_is_found_after_edits_too():
    graph, first, second = chain()
    assert previous_node(first) is None
    assert previous_node(second) is first
    between = ir.node("Neg", [first.outputs[0]])
    graph.insert_before(second, between)
    assert previous_node(second) is between
    graph.remove(between)
    assert previous_node(second) is first


def test_reading_metadata_makes_none():
    _, first, _ = chain()
    for owner in (first, first.outputs[0]):
        assert not properties_of(owner)
        assert not meta_of(owner)
        assert owner._metadata_props is None
        assert owner._metadata is None
        owner.metadata_props["a"] = "b"
        owner.meta["c"] = 1
        assert dict(properties_of(owner)) == {"a": "b"}
        assert dict(meta_of(owner)) == {"c": 1}


def test_attributes_and_initializers_are_wrapped_dictionaries() -> None:
    weight = ir.Value(name="w", const_value=ir.tensor(np.zeros(2, np.float32), name="w"))
    node = ir.node("Concat", [weight], {"axis": 1})
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[weight])
    for container, plain in ((node.attributes, attributes_of(node)), (graph.initializers, initializers_of(graph))):
        assert isinstance(container, UserDict)
        assert type(plain) is dict
        assert plain is container.data is plain_dict(container)
        assert plain == dict(container) != {}
    own = {"a": 1}
    assert plain_dict(own) is own


def test_replacing_an_input_keeps_account_of_uses() -> None:
    graph, first, second = chain()
    old, new = first.outputs[0], graph.inputs[0]
    replace_input(second, 0, new)
    assert second.inputs == (new, old)
    assert old.uses() == ((second, 1),)
    assert set(new.uses()) == {(first, 0), (second, 0)}
    replace_input(second, 1, None)
    assert (second.inputs, old.uses()) == ((new, None), ())
    assert not is_needed(old)
    assert is_needed(second.outputs[0])


def test_a_node_that_is_unlinked_keeps_its_operands_and_can_come_back() -> None:
    graph, first, second = chain()
    unlink(second)
    assert list(graph) == [first]
    assert second.graph is None
    assert second.inputs == (first.outputs[0],) * 2
    graph.append(second)
    assert list(graph) == [first, second]


def test_outputs_of_graphs_are_counted() -> None:
    graph, first, second = chain()
    graph.outputs.append(second.outputs[0])
    assert [output_count(graph, value) for value in (first.outputs[0], second.outputs[0])] == [0, 2]
    graph.outputs.pop()
    assert output_count(graph, second.outputs[0]) == 1


def test_outputs_in_the_midst_can_go_and_come_back() -> None:
    node = ir.node("Split", [ir.Value(name="x")], num_outputs=3)
    a, b, c = node.outputs
    set_outputs(node, (a, c))
    assert node.outputs == (a, c)
    assert [value.producer() for value in (a, b, c)] == [node, None, node]
    assert [value.index() for value in (a, b, c)] == [0, None, 1]
    set_outputs(node, (a, b, c))
    assert [(value.producer(), value.index()) for value in (a, b, c)] == [(node, 0), (node, 1), (node, 2)]


def test_a_graph_is_filled_as_its_constructor_does() -> None:
    weight = ir.Value(name="w", const_value=ir.tensor(np.zeros(2, np.float32), name="w"))
    node = ir.node("Relu", [weight])
    graph = ir.Graph([], node.outputs, nodes=())
    fill(graph, [weight], [node], NEVER)
    assert dict(graph.initializers) == {"w": weight}
    assert list(graph) == [node]
    assert node.graph is graph
    assert weight.is_initializer()


def test_a_clone_is_the_model_again() -> None:
    graph, *_ = chain()
    model = ir.Model(graph, ir_version=10)
    copy = clone(model, NEVER)
    assert ir.to_proto(copy).SerializeToString() == ir.to_proto(model).SerializeToString()
    assert not {*copy.graph} & {*graph}


def test_types_are_compared_at_a_glance() -> None:
    def value(dtype: ir.DataType, dims: list[int | str]) -> ir.Value:
        result = ir.node("Relu", [ir.Value(name="x")]).outputs[0]
        result.type, result.shape = ir.TensorType(dtype), ir.Shape(dims)
        return result

    one, same = value(ir.DataType.FLOAT, [2, "N"]), value(ir.DataType.FLOAT, [2, "N"])
    assert trivially_same_type(one, same, ())
    assert not trivially_same_type(one, same, {ir.DataType.FLOAT})
    assert not trivially_same_type(one, value(ir.DataType.FLOAT16, [2, "N"]), ())
    assert not trivially_same_type(one, value(ir.DataType.FLOAT, [2, "M"]), ())
    ir.Graph([], [same], nodes=[same.producer()])  # what a graph declares of its output may differ from what is known
    assert not trivially_same_type(one, same, ())


def test_a_fact_is_looked_up_without_making_any() -> None:
    _, first, _ = chain()
    assert get_meta(first, "a") is None
    assert first._metadata is None
    first.meta["a"] = 1
    assert (get_meta(first, "a"), get_meta(first, "b")) == (1, None)
