"""Equal nodes become one; random, impure and merely similar ones stay, and every graph output keeps its name."""

import onnx_ir as ir

from ortopt.manager import GraphTransformerManager
from ortopt.testing import parse, run
from ortopt.transformers.cleanup.common_subexpression_elimination import CommonSubexpressionElimination

PASS = "common_subexpression_elimination"


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
