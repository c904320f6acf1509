"""New names are those that nothing in the model has; nodes and values without names get some."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.index import OpIndex
from ortopt.graph.names import NameRegistry
from ortopt.options import Options
from ortopt.testing import parse

MODEL = """main (float[2] x, bool c) => (float[2] y) <float[2] w = {1.0, 2.0}> {
    a = Add (x, w)
    y = If (c) <then_branch = t () => (float[2] p) { p = Relu (a) }, else_branch = e () => (float[2] q) { q = Neg (a) }>
}"""


def registry() -> NameRegistry:
    model = parse(MODEL)
    scope.attach(model, Options())
    return NameRegistry(OpIndex(model).graphs)


def test_a_name_is_fresh_in_all_graphs() -> None:
    names = registry()
    assert [names.fresh(hint) for hint in ("x", "w", "a", "p", "y", "new", "new", "new")] == [
        *("x_1", "w_1", "a_1", "p_1", "y_1"),
        *("new", "new_1", "new_2"),
    ]


def test_a_registered_name_is_taken_and_a_forgotten_one_free() -> None:
    names = registry()
    assert "z" not in names.collect()
    names.register("z")
    assert names.fresh("z") == "z_1"
    names.forget()
    assert names.fresh("z") == "z"


def test_a_number_takes_the_place_of_another() -> None:
    names = registry()
    names.collect()
    for taken in ("conv", "conv_3", "b_2", "_1", "1"):
        names.register(taken)
    assert [names.fresh(hint) for hint in ("conv_3", "conv_3", "conv", "b_2", "b", "_1", "1")] == [
        *("conv_1", "conv_2", "conv_4"),
        *("b_1", "b", "_1_1", "1_1"),
    ]


def test_results_are_named_after_their_node() -> None:
    names = registry()
    node = ir.node("Relu", [], num_outputs=3, name="block/Relu")
    node.outputs[1].name = "own"
    names.name_results(node)
    assert [value.name for value in node.outputs] == ["block/Relu_output", "own", "block/Relu_output_1"]
