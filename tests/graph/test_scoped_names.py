"""New nodes are named by the nodes that they stand for: the deepest scope that holds all of them, then the op."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import pytest

from ortopt import ops
from ortopt.framework.workspace import Workspace
from ortopt.graph.edit import Editor
from ortopt.graph.module_scopes import common_scope, constant_name, scope_of, scoped_name
from ortopt.graph.provenance import ORIGIN_KEY, origins_of, stands_for
from ortopt.options import Options
from ortopt.testing import parse

RULE = {
    "one origin, the same op: its own name": (["/m/dense/MatMul"], "MatMul", "/m/dense/MatMul"),
    "one origin, another op": (["/m/dense/MatMul"], "Gemm", "/m/dense/Gemm"),
    "a name that somebody has chosen": (["block.0/stem"], "MatMul", "block.0/stem"),
    "siblings": (["/m/self/query/MatMul", "/m/self/key/MatMul"], "Attention", "/m/self/Attention"),
    "components, not letters": (["/m/layer.1/x", "/m/layer.11/x"], "Add", "/m/Add"),
    "nothing in common": (["a/x", "b/y"], "Add", "Add"),
    "nothing in common but the root": (["/a/x", "/b/y"], "Add", "/Add"),
    "names that say nothing of a scope": (["node_add_3", "node_mul"], "Gemm", "Gemm"),
    "one that says nothing beside one that does": (["Constant_321", "/m/act/Mul"], "Gelu", "/m/act/Gelu"),
    "none": ([], "Shape", "Shape"),
    "nothing is said twice": (["/m/Gather/a", "/m/Gather/b"], "Gather", "/m/Gather"),
    "an op with a slash": (["/m/a/x"], "my/Op", "/m/a/Op"),
}


def nodes(names: Sequence[str]) -> list[ir.Node]:
    return [ir.node("MatMul", [], name=name) for name in names]


@pytest.mark.parametrize("case", RULE)
def test_the_rule(case: str) -> None:
    names, op, expected = RULE[case]
    origins = nodes(names)
    assert scoped_name(ir.node(op, []), common_scope(origins), origins) == expected


def test_an_origin_without_a_name_goes_by_its_result() -> None:
    origin = ir.node("Conv", [])
    origin.outputs[0].name = "gpu_0/conv1_1"
    assert common_scope([origin]) == ("gpu_0",)
    assert origins_of(origin) == ("gpu_0/conv1_1",)
    assert scoped_name(ir.node("Conv", []), ("gpu_0",), [origin]) == "gpu_0/Conv"


def test_scopes() -> None:
    assert [scope_of(name) for name in ("", "a", "/a", "a/b", "/a/b/c")] == [None, None, ("",), ("a",), ("", "a", "b")]


def test_constants_are_named_after_what_reads_them() -> None:
    assert constant_name(nodes(["/m/a/MatMul"])) == "/m/a/MatMul_constant"
    assert constant_name(nodes(["/m/a/MatMul", "/m/b/MatMul"])) == "/m/constant"
    assert constant_name([]) == "constant"


TEXT = """main (float[2] x) => (float[2] y) {
    a = Relu (x)
    b = Neg (a)
    y = Abs (b)
}"""
NAMES = ("/m/layer.0/act/Relu", "/m/layer.0/act/Neg", "/m/head/Abs")


def named() -> tuple[ir.Model, Editor]:
    model = parse(TEXT)
    for node, name in zip(model.graph, NAMES, strict=True):
        node.name = name
    return model, Workspace(model, Options()).edit


def test_names_of_a_pass_and_of_a_neighbour_do_not_count() -> None:
    model, edit = named()
    relu, neg, y = model.graph
    new = ir.node("Elu", [model.graph.inputs[0]], name="mine")
    edit.replace({neg.outputs[0]: new.outputs[0]}, before=y, origin=[relu, neg])
    assert new.name == "/m/layer.0/act/Elu"
    assert new.outputs[0].name == "b"
    assert new.meta[ORIGIN_KEY] == NAMES[:2]


def test_a_name_does_not_grow_however_often_it_is_given() -> None:
    model, edit = named()
    for _ in range(3):
        neg = model.graph[1]
        new = ir.node("Neg", [model.graph[0].outputs[0]])
        edit.replace({neg.outputs[0]: new.outputs[0]}, before=neg, origin=[neg])
    assert [node.name for node in model.graph] == [NAMES[0], "/m/layer.0/act/Neg_3", NAMES[2]]
    assert model.graph[1].meta[ORIGIN_KEY] == (NAMES[1],)


def test_a_rewrite_may_say_which_node_stands_for_which() -> None:
    model, edit = named()
    relu, neg, y = model.graph
    one = stands_for(ir.node("Elu", [model.graph.inputs[0]]), neg)
    two = stands_for(ir.node("Tanh", [one.outputs[0]]), y)
    three = ir.node("Erf", [two.outputs[0]])
    edit.replace({y.outputs[0]: three.outputs[0]}, before=y, origin=[relu, neg, y])
    assert [node.name for node in model.graph] == ["/m/layer.0/act/Elu", "/m/head/Tanh", "/m/layer.0/act/Erf"]
    assert [node.meta[ORIGIN_KEY] for node in model.graph] == [NAMES[1:2], NAMES[2:], NAMES[:1]]
    assert [node.outputs[0].name for node in model.graph] == ["/m/layer.0/act/Elu_output", "/m/head/Tanh_output", "y"]


def test_what_is_copied_stands_for_that_and_for_what_nothing_else_stands_for() -> None:
    model, edit = named()
    relu, neg, y = model.graph
    moved = ops.copied(neg, [model.graph.inputs[0]])
    last = ir.node("Elu", [ops.copied(relu, moved.outputs).outputs[0]])
    edit.replace({y.outputs[0]: last.outputs[0]}, before=y, origin=[relu, neg, y])
    assert [node.name for node in model.graph] == ["/m/layer.0/act/Neg_1", "/m/layer.0/act/Relu_1", "/m/head/Elu"]
    only = ops.copied(model.graph[1], [model.graph.inputs[0]])
    edit.replace({last.outputs[0]: only.outputs[0]}, before=last, origin=list(model.graph))
    assert [node.name for node in model.graph] == ["/m/Relu"]
    assert set(model.graph[0].meta[ORIGIN_KEY]) == set(NAMES)


def test_new_nodes_below_a_new_node_follow_the_rule_and_others_keep_their_names() -> None:
    model, edit = named()
    relu, neg, y = model.graph
    old, new = ir.node("Exp", [relu.outputs[0]], name="kept"), ir.node("Log", [relu.outputs[0]])
    branches = {
        name: ir.AttrGraph(name, ir.Graph([], inner.outputs, nodes=[inner], name=name))
        for name, inner in (("then_branch", old), ("else_branch", new))
    }
    new.name, new.outputs[0].name = None, None
    condition = ir.node("Cast", [relu.outputs[0]], {"to": 9})
    chosen = ir.node("If", [condition.outputs[0]], branches)
    edit.replace({neg.outputs[0]: chosen.outputs[0]}, before=y, origin=[neg])
    assert (old.name, new.name, chosen.name) == ("kept", "/m/layer.0/act/Log", "/m/layer.0/act/If")
    assert new.outputs[0].name == "/m/layer.0/act/Log_output"


def test_of_several_replaced_values_each_new_node_stands_for_what_served_the_same_of_them() -> None:
    model = parse("""main (float[2] x) => (float[2] p, float[2] q) {
        mask = Abs (x)
        a = Neg (x)
        p = Add (a, mask)
        b = Exp (p)
        q = Add (b, mask)
    }""")
    mask, neg, p, exp, q = model.graph
    for node, name in zip(model.graph, ("/mask", "/l.0/Neg", "/l.0/Add", "/l.1/Exp", "/l.1/Add"), strict=True):
        node.name = name
    edit = Workspace(model, Options()).edit
    (x,) = model.graph.inputs
    shared = ir.node("Relu", [x])
    first = ir.node("Sub", [ir.node("Sin", [x]).outputs[0], shared.outputs[0]])
    second = ir.node("Sub", [ir.node("Cos", first.outputs).outputs[0], shared.outputs[0]])
    replacements = {p.outputs[0]: first.outputs[0], q.outputs[0]: second.outputs[0]}
    edit.replace(replacements, before=q, origin=[mask, neg, p, exp, q])
    assert {node.op_type: node.name for node in model.graph if node.op_type != "Sub"} == {
        "Relu": "/Relu",
        "Sin": "/l.0/Sin",
        "Cos": "/l.1/Cos",
    }
    assert [first.name, second.name] == ["/l.0/Sub", "/l.1/Sub"]
    assert first.meta[ORIGIN_KEY] == ("/l.0/Neg", "/l.0/Add")
