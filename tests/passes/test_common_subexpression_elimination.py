"""Equal nodes become one; random, impure and merely similar ones stay, and every graph output keeps its name."""

import onnx_ir as ir
import pytest

from ortopt.manager import GraphTransformerManager
from ortopt.testing import check_rewrites, parse, run
from ortopt.transformers.cleanup.common_subexpression_elimination import CommonSubexpressionElimination

PASS = "common_subexpression_elimination"
XY = "main (float[N,4] x, float[N,4] z) => (float[N,4] y)"


MERGED = {
    "attributes in any order": "a = LpNormalization <axis = 0, p = 1> (x) b = LpNormalization <p = 1, axis = 0> (x)",
    "inputs left out at the end": "a = Clip (x) b = Clip (x, , )",
    "commutative": "a = Mul (x, z) b = Mul (z, x)",
    "contrib": "a = com.microsoft.Gelu (x) b = com.microsoft.Gelu (x)",
}


@pytest.mark.parametrize("kind", MERGED)
def test_merges(kind: str) -> None:
    model = check_rewrites(PASS, f"{XY} {{ {MERGED[kind]} t = Sub (a, b) u = Add (t, z) y = Add (u, x) }}")
    assert len(model.graph) == 4


def test_one_graph_output_gives_its_name_to_the_node_that_stays() -> None:
    model = check_rewrites(
        PASS, "main (float[4] x) => (float[4] y, float[4] z) { a = Exp (x) y = Neg (a) z = Exp (x) }", ops={"Exp": 1}
    )
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_nodes_that_were_alone_when_they_were_passed_are_found_in_one_run() -> None:
    depth = 30
    first = "\n".join(f"a{i} = Exp ({f'a{i - 1}' if i else 'x'})" for i in range(depth))
    second = "\n".join(f"b{i} = Exp ({f'b{i - 1}' if i else 'x'})" for i in range(depth))
    model = parse(f"main (float[4] x) => (float[4] y) {{ {first} {second} y = Add (a{depth - 1}, b{depth - 1}) }}")
    manager = GraphTransformerManager(steps=2)
    manager.register(CommonSubexpressionElimination())
    manager.apply_transformers(model, 1)
    assert len(model.graph) == depth + 1
    assert [entry.rewrites for entry in manager.history] == [depth, 0]


def test_an_equal_node_does_not_tell_an_output_its_shape() -> None:
    model = parse(
        "main (float[N,4] x) => (float[?,4] y, float[?,4] z) { y = Sigmoid (x) t = Sigmoid (x) z = Sigmoid (t) }"
    )
    assert run("common_subexpression_elimination", model)[0]
    assert model.graph.outputs[0].shape == ir.Shape([None, 4])
