"""onnx-ir's private names mean what we take them for; a release that renames one fails here first."""

import onnx_ir as ir

from ortopt.onnx_ir_internals import first_use, meta_of, previous_node, properties_of, use_count


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
