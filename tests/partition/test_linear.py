"""Graphs of awkward shapes: nothing is asked of everything again for each node."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.graph import facts
from ortopt.graph.edit import Editor
from ortopt.partition import lazy_tensor_policy
from ortopt.partition.dag import Dag
from ortopt.partition.partitioning import group, prepare
from ortopt.partition.settings import PartitionOptions, Policy
from ortopt.testing import parse
from tests.work import instructions

MANY = 300
WIDE = (
    f"main (float[N,4] x) => ({', '.join(f'float[N,4] c{i}' for i in range(MANY))}, float[N,4] y) {{"
    f" {' '.join(f'c{i} = Relu (x)' for i in range(MANY))} y = Sum ({', '.join(f'c{i}' for i in range(MANY))}) }}"
)


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_edits_look_neither_at_all_outputs_of_a_graph_nor_at_all_inputs_of_a_node(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnx-ir does, for each node that leaves a graph and for each input that changes."""

    def forbidden(*_: object, **__: object) -> None:
        pytest.fail("that is linear in the outputs of the graph or the inputs of the node")

    model = parse(WIDE)
    prepare(model)
    monkeypatch.setattr(ir.Graph, "remove", forbidden)
    monkeypatch.setattr(ir.Node, "replace_input_with", forbidden)
    assert len(group(model, PartitionOptions(policy=policy))) > 2


def asked_of_sizes(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often dimensions are asked for, where the outside wants the shapes of many values of one cluster."""
    results = ", ".join(f"int64[2] s{i}" for i in range(count))
    body = " ".join(
        f"n{i} = Neg (x) p{i + 1} = MatMul (p{i}, w) a{i} = Add (p{i}, n{i}) s{i} = Shape (a{i})" for i in range(count)
    )
    model = parse(f"main (float[N,4] x, float[4,4] w) => ({results}) {{ p0 = Relu (x) {body} }}")
    prepare(model)
    asked, dims_of = [0], facts.dims_of

    def counting(value: ir.Value) -> facts.Dims | None:
        asked[0] += 1
        return dims_of(value)

    with monkeypatch.context() as patch:
        patch.setattr(facts, "dims_of", counting)
        group(model, PartitionOptions(deny=("Shape", "Neg")))
    assert not any(node.op_type == "Add" for node in model.graph)
    return asked[0]


def test_sizes_that_the_outside_wants_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (asked_of_sizes(count, monkeypatch) for count in (10, 80))
    assert many < 10 * few


def fan_in(count: int) -> int:
    """The work for one item that reads many, which do not fit into its cluster."""
    dag = Dag(
        [*((0,) for _ in range(count)), tuple(range(1, count + 1))],
        [(i + 1,) for i in range(count + 1)],
        frozenset({count + 1}),
        [1] * (count + 1),
    )
    found: list[object] = []
    work = instructions(lambda: found.extend(lazy_tensor_policy.clusters(dag, limit=8)))
    assert len(found) == count + 1
    return work


def test_the_literal_policy_does_not_look_at_all_operands_for_each_of_them() -> None:
    """Eight times as many: eight times as much work, and not 64 times."""
    assert fan_in(800) < 12 * fan_in(100)


def test_places_of_outputs_are_found_whatever_becomes_of_the_outputs() -> None:
    """The editor remembers them, and does not believe what it remembers."""
    model = parse("main (float[N] x) => (float[N] a, float[N] b, float[N] c) { a = Exp (x) b = Sin (x) c = Cos (x) }")
    prepare(model)
    edit = Editor(model, lambda _: None)
    graph = model.graph
    a, b, c = (node.outputs[0] for node in graph)
    assert [edit.output_positions(graph, value) for value in (a, b, c)] == [[0], [1], [2]]
    start = edit.version
    edit.set_output(graph, 2, a)
    assert [edit.output_positions(graph, value) for value in (a, b, c)] == [[0, 2], [1], []]
    edit.set_output(graph, 0, c)
    assert [edit.output_positions(graph, value) for value in (a, b, c)] == [[2], [1], [0]]
    edit.rollback(start)
    assert [edit.output_positions(graph, value) for value in (a, b, c)] == [[0], [1], [2]]
    graph.outputs[:] = [c, a]
    assert [edit.output_positions(graph, value) for value in (c, a, b)] == [[0], [1], []]
    assert edit.output_positions(graph, ir.Value(name="a")) == []
