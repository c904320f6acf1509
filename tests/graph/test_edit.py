"""Every edit can be taken back: after a rollback the model serializes to the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt import registry
from ortopt.cancellation import CancellationToken
from ortopt.framework.workspace import Workspace
from ortopt.graph import scope
from ortopt.graph.edit import Conflict, Editor, constant
from ortopt.manager import GraphTransformerManager
from ortopt.options import Options, TransformerLevel
from ortopt.serialization import save
from ortopt.testing import parse
from tests.texts import Case, read

MODEL = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
main (float[N,2] x, bool c) => (float[N,2] y, float[N,2] z)
<float[2] w = {1.0, 2.0}, float[2] v = {3.0, 4.0}, float[2] unused = {5.0, 6.0}> {
    a = Add (x, w)
    b = Mul (a, v)
    k = Neg (b)
    z = If (c) <
        then_branch = yes () => (float[N,2] p) { p = Relu (k) },
        else_branch = no () => (float[N,2] q) { q = Add (a, w) }
    >
    y = local.half (k)
}
<domain: "local", opset_import: ["" : 17]> half (s) => (t) { t = Relu (s) }
"""


def to_bytes(model: ir.Model) -> bytes:
    """Everything that onnx-ir writes; unlike ortopt's own writer it does not mind a model that is broken for now."""
    return ir.to_proto(model).SerializeToString(deterministic=True)


def workspace() -> Workspace:
    return Workspace(parse(MODEL), Options())


def node(model: ir.Model, op: str) -> ir.Node:
    return next(n for graph in scope.graphs(model) for n in graph if n.op_type == op)


def _replace_by_constant(model: ir.Model, edit: Editor) -> None:
    add = node(model, "Mul")
    edit.replace({add.outputs[0]: constant(np.ones((3, 2), np.float32))}, before=add, origin=[add])


def _replace_output(model: ir.Model, edit: Editor) -> None:
    call = node(model, "half")
    edit.replace({call.outputs[0]: ir.node("Abs", call.inputs).outputs[0]}, before=call, origin=[call])


def _replace_in_function(model: ir.Model, edit: Editor) -> None:
    (relu,) = next(iter(model.functions.values()))
    add = ir.node("Add", [relu.inputs[0], constant(1.0)])
    edit.replace({relu.outputs[0]: add.outputs[0]}, before=relu, origin=[relu])


def _remove_if(model: ir.Model, edit: Editor) -> None:
    gone = node(model, "If")
    edit.set_output(model.graph, 1, node(model, "Neg").outputs[0])
    edit.remove(gone)


def _initializers(model: ir.Model, edit: Editor) -> None:
    edit.remove_initializers(model.graph, [model.graph.initializers["unused"]])
    edit.add_initializer(model.graph, constant([1, 2, 3]))


def _move_into_branch(model: ir.Model, edit: Editor) -> None:
    branch = node(model, "If").attributes["then_branch"].as_graph()
    edit.move_before(node(model, "Neg"), branch[0])


EDITS: dict[str, Callable[[ir.Model, Editor], object]] = {
    "insert": lambda m, e: e.insert([ir.node("Abs", [m.graph.inputs[0]])], before=m.graph[1]),
    "append": lambda m, e: e.append(m.graph, ir.node("Abs", [m.graph.inputs[0]])),
    "set_input": lambda m, e: e.set_input(node(m, "Mul"), 1, m.graph.initializers["w"]),
    "set_input to a constant": lambda m, e: e.set_input(node(m, "Mul"), 1, constant(2.0)),
    "set_input beyond": lambda m, e: e.set_input(node(m, "Neg"), 3, m.graph.initializers["w"]),
    "attribute": lambda m, e: e.set_attribute(node(m, "Neg"), ir.AttrInt64("axis", 1)),
    "remove_attribute": lambda m, e: e.remove_attribute(node(m, "If"), "else_branch"),
    "replace_uses": lambda m, e: e.replace_uses(node(m, "Neg").outputs[0], m.graph.inputs[0]),
    "rename": lambda m, e: e.rename(node(m, "Neg").outputs[0], "other"),
    "set_type": lambda m, e: e.set_type(m.graph.outputs[0], ir.TensorType(ir.DataType.INT8), ir.Shape([1])),
    "opset": lambda m, e: e.set_opset(m.opset_imports, "com.microsoft", 1),
    "remove_opset": lambda m, e: e.remove_opset(m.opset_imports, "local"),
    "remove_function": lambda m, e: e.remove_function(next(iter(m.functions.values()))),
    "reorder": lambda m, e: e.reorder(m.graph, list(reversed(list(m.graph)))),
    "initializers": _initializers,
    "remove a node with subgraphs": _remove_if,
    "move": _move_into_branch,
    "replace": _replace_output,
    "replace by a constant": _replace_by_constant,
    "replace in a function": _replace_in_function,
}


@pytest.mark.parametrize("name", EDITS)
def test_rollback_restores_the_bytes_and_the_index(name: str) -> None:
    space = workspace()
    model, edit = space.model, space.edit
    before, spent = to_bytes(model), edit.added_bytes
    counts = {scope.label(graph): edit.index.counts(graph) for graph in scope.graphs(model)}
    start, clock = edit.version, edit.clock
    EDITS[name](model, edit)
    assert edit.clock > clock
    assert to_bytes(model) != before or name == "append"
    edit.rollback(start)
    assert to_bytes(model) == before
    assert edit.added_bytes == spent
    assert {scope.label(graph): edit.index.counts(graph) for graph in scope.graphs(model)} == counts


def test_many_edits_are_taken_back_in_reverse() -> None:
    space = workspace()
    before, start = to_bytes(space.model), space.edit.version
    for name in ("replace", "replace by a constant", "replace in a function", "insert", "attribute", "initializers"):
        EDITS[name](space.model, space.edit)
    space.edit.rollback(start)
    assert to_bytes(space.model) == before


def test_replace_keeps_names_types_and_metadata_of_what_it_replaces() -> None:
    space = workspace()
    old = node(space.model, "Neg")
    old.metadata_props["origin"] = "layer 3"
    old.outputs[0].metadata_props["scale"] = "7"
    old.doc_string = "a negation"
    (new,) = space.edit.replace({old.outputs[0]: ir.node("Abs", old.inputs).outputs[0]}, before=old, origin=[old])
    assert new.outputs[0].name == "k"
    assert new.outputs[0].metadata_props == {"scale": "7"}
    assert new.metadata_props == {"origin": "layer 3"}
    assert new.doc_string == "a negation"
    assert new.outputs[0].dtype == ir.DataType.FLOAT
    assert old.graph is None


def test_replace_drops_what_became_dead_and_only_that() -> None:
    space = workspace()
    model = space.model
    neg = node(model, "Neg")
    space.edit.replace({neg.outputs[0]: ir.node("Abs", [model.graph.inputs[0]]).outputs[0]}, before=neg, origin=[neg])
    assert [n.op_type for n in model.graph] == ["Add", "Abs", "If", "half"]  # the branch still needs Add
    space.edit.drop_freed_initializers()
    assert set(model.graph.initializers) == {"w", "unused"}  # v is free now; unused always was: not ours to drop


def test_an_initializer_that_one_node_uses_twice_is_freed_with_it() -> None:
    text = "main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { s = Mul (w, w) y = Add (x, s) }"
    space = Workspace(parse(text), Options())
    add = node(space.model, "Add")
    space.edit.replace({add.outputs[0]: ir.node("Abs", [add.inputs[0]]).outputs[0]}, before=add, origin=[add])
    space.edit.drop_freed_initializers()
    assert not space.model.graph.initializers
    assert space.edit.added_bytes == -8


CONFLICTS = {
    "a graph output must keep its own name": lambda m: (node(m, "half"), m.graph.inputs[0]),
    "would be int64 instead of float": lambda m: (node(m, "Neg"), constant(1)),
    "would have rank 1 instead of 2": lambda m: (node(m, "Neg"), constant([1.0, 2.0])),
    r"would have the shape \[3,3\]": lambda m: (node(m, "Neg"), constant(np.ones((3, 3), np.float32))),
}


@pytest.mark.parametrize("reason", CONFLICTS)
def test_replace_refuses_and_changes_nothing(reason: str) -> None:
    space = workspace()
    before = to_bytes(space.model)
    old, new = CONFLICTS[reason](space.model)
    with pytest.raises(Conflict, match=reason):
        space.edit.replace({old.outputs[0]: new}, before=old, origin=[old])
    assert to_bytes(space.model) == before


def test_replace_refuses_to_let_the_file_grow_beyond_the_allowance() -> None:
    space = workspace()
    space.edit.allowance = 100
    neg = node(space.model, "Neg")
    before = to_bytes(space.model)
    big = ir.node("Add", [neg.inputs[0], constant(np.ones((50, 2), np.float32))])
    with pytest.raises(Conflict, match="grow"):
        space.edit.replace({neg.outputs[0]: big.outputs[0]}, before=neg, origin=[neg])
    assert to_bytes(space.model) == before
    assert space.edit.added_bytes == 0


def test_an_existing_value_takes_over_the_name_of_a_graph_output() -> None:
    model = parse("main (float[N] x) => (float[N] y) { t = Relu (x) y = Identity (t) }")
    space = Workspace(model, Options())
    identity = node(model, "Identity")
    space.edit.replace({identity.outputs[0]: identity.inputs[0]}, before=identity, origin=[identity])
    assert [(n.op_type, n.outputs[0].name) for n in model.graph] == [("Relu", "y")]


def test_restore_order_sorts_only_what_is_out_of_order() -> None:
    space = workspace()
    model = space.model
    add, neg = node(model, "Add"), node(model, "Neg")
    extra = ir.node("Abs", [neg.outputs[0]])
    space.edit.replace({add.outputs[0]: ir.node("Sub", add.inputs).outputs[0]}, before=neg, origin=[add])
    space.edit.restore_order()
    position = {n: i for i, n in enumerate(model.graph)}
    for user in model.graph:
        for value in user.inputs:
            producer = value.producer() if value is not None else None
            assert producer is None or position[producer] < position[user]
    assert extra.graph is None


def test_before_ir_version_4_constants_of_subgraphs_are_nodes() -> None:
    model = parse("""<ir_version: 3, opset_import: ["" : 8]> main (float[2] x, bool c) => (float[2] y, float[2] z) {
        y = If (c) <then_branch = yes () => (float[2] p) { p = Relu (x) }, else_branch = no () => (float[2] q)
            { q = Neg (x) }>
        z = Relu (x)
    }""")
    space = Workspace(model, Options())
    branch = model.graph[0].attributes["then_branch"].as_graph()
    for relu in (branch[0], model.graph[1]):
        add = ir.node("Add", [relu.inputs[0], constant(1.0)])
        space.edit.replace({relu.outputs[0]: add.outputs[0]}, before=relu, origin=[relu])
    assert [n.op_type for n in branch] == ["Constant", "Add"]
    assert [n.op_type for n in model.graph] == ["If", "Add"]
    written = onnx.load_from_string(save.to_bytes(model))
    assert [value.name for value in written.graph.input] == ["x", "c", *model.graph.initializers]
    onnx.checker.check_model(written, full_check=True)


def test_before_opset_9_a_function_gets_constants_of_floats_only() -> None:
    model = parse("""<ir_version: 10, opset_import: ["" : 8, "local" : 1]>
        main (float[2] x) => (float[2] y) { y = local.f (x) }
        <domain: "local", opset_import: ["" : 8]> f (s) => (t) { t = Relu (s) }""")
    space = Workspace(model, Options())
    (relu,) = next(iter(model.functions.values()))
    reshape = ir.node("Reshape", [relu.inputs[0], constant([2])])
    with pytest.raises(Conflict, match="holds floats only"):
        space.edit.replace({relu.outputs[0]: reshape.outputs[0]}, before=relu, origin=[relu])
    add = ir.node("Add", [relu.inputs[0], constant(1.0)])
    space.edit.replace({relu.outputs[0]: add.outputs[0]}, before=relu, origin=[relu])
    assert [n.op_type for n in next(iter(model.functions.values()))] == ["Constant", "Add"]


def test_an_adopted_initializer_comes_back() -> None:
    work = Workspace(
        parse("""main (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = yes () => (float[2] p) <float[2] w = {1, 2}, float[2] v = {3, 4}> { p = Add (x, w) },
                else_branch = no () => (float[2] q) { q = Neg (x) }
            >
        }"""),
        Options(),
    )
    before, start = to_bytes(work.model), work.edit.version
    (if_node,) = work.model.graph
    branch = if_node.attributes["then_branch"].as_graph()
    adopted = work.edit.adopt_initializer(branch.initializers["w"], if_node)
    assert list(work.model.graph.initializers.values()) == [adopted]
    assert list(branch.initializers) == ["v"]
    work.edit.clear_outputs(branch)
    work.edit.rollback(start)
    assert to_bytes(work.model) == before


def test_taking_back_a_node_frees_what_its_subgraph_used() -> None:
    work = workspace()
    if_node = node(work.model, "If")
    (x,) = (value for value in work.model.graph.inputs if value.name == "x")
    used = len(x.uses())
    result = ir.node("Relu", [x])
    inner = ir.Graph([], result.outputs, nodes=[result], name="inner")
    result.outputs[0].name = "r"
    other = ir.Graph([], [], nodes=[], name="other")
    start = work.edit.version
    work.edit.insert([ir.node("If", [if_node.inputs[0]], {"then_branch": inner, "else_branch": other})], if_node)
    assert len(x.uses()) == used + 1
    work.edit.rollback(start)
    assert len(x.uses()) == used


def test_many_names_of_one_hint_stay_cheap() -> None:
    edit = workspace().edit
    names = {edit.fresh_name("a") for _ in range(20_000)}  # quadratic, this would take minutes
    assert len(names) == 20_000


def test_an_initializer_that_a_node_uses_twice_goes_with_it() -> None:
    work = Workspace(
        parse("main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Add (w, w) y = Neg (x) }"), Options()
    )
    work.edit.remove(node(work.model, "Add"))
    work.edit.drop_freed_initializers()
    assert not work.model.graph.initializers
    assert work.edit.added_bytes == -8


@pytest.mark.parametrize("case", read(Path(__file__).parent / "nested_graphs.txt"), ids=lambda case: case.title)
def test_edits_of_nested_graphs_come_back(case: Case) -> None:
    work = Workspace(parse(case.body), Options())
    before, start, nbytes = to_bytes(work.model), work.edit.version, work.edit.added_bytes
    indexed = {graph: work.edit.index.counts(graph) for graph in scope.graphs(work.model)}
    manager = GraphTransformerManager()
    manager.register(registry.installed().find(case.title)())
    assert manager.run(work, TransformerLevel.LEVEL1, CancellationToken())
    assert to_bytes(work.model) != before
    work.edit.rollback(start)
    assert to_bytes(work.model) == before
    assert work.edit.added_bytes == nbytes
    assert {graph: work.edit.index.counts(graph) for graph in scope.graphs(work.model)} == indexed


def test_what_an_output_or_an_input_declares_stays_where_it_stands_for_something_better_known() -> None:
    work = Workspace(
        parse("""main (float[N,?] x, float[?,4] k) => (float[?,?] y, float[N,4] z) {
            y = Add (x, k) a = Add (x, k) i = Identity (k) b = Mul (a, i) z = Neg (b) }"""),
        Options(),
    )
    model = work.model
    declared = [str(value.shape) for value in (*model.graph.inputs, *model.graph.outputs)]
    first, second, identity = list(model.graph)[:3]
    work.edit.replace({second.outputs[0]: first.outputs[0]}, before=second)
    work.edit.replace({identity.outputs[0]: model.graph.inputs[1]}, before=identity)
    assert [str(value.shape) for value in (*model.graph.inputs, *model.graph.outputs)] == declared
