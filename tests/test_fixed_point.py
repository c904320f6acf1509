"""What `optimize` makes is a fixed point: a second run on the saved result leaves every byte."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from ortopt import optimize
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded
from ortopt.serialization.save import to_bytes
from tests.rules import Swap

_, *SECTIONS = (Path(__file__).parent / "fixed_points.txt").read_text(encoding="utf-8").split("\n--- ")
MODELS = dict(section.split("\n", 1) for section in SECTIONS)
"""Each has been one that a second run changed."""


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_second_run_changes_nothing(name: str, level: int) -> None:
    model = onnx.parser.parse_model(MODELS[name])
    target = "onnx" if level == 1 else "ort"
    once = to_bytes(optimize(model, level=level, target=target, verify=False).model)
    twice = optimize(once, level=level, target=target, verify=False)
    assert [one.transformer for one in twice.summary.passes] == []
    assert to_bytes(twice.model) == once


def test_a_rewrite_of_a_higher_level_below_an_if_lets_a_lower_one_see_the_if() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        main (float[N,4] a, float[4,3] b, bool yes) => (float[N,3] y) {
        y = If (yes) <
            then_branch = then () => (float[N,3] p) { p = Einsum <equation = "ij,jk->ik"> (a, b) },
            else_branch = else () => (float[N,3] e) { e = MatMul (a, b) }
        >
    }""")
    assert [node.op_type for node in optimize(model, level=3, verify=False).model.graph] == ["MatMul"]


IN_FUNCTIONS = {
    "what a function gives is known once its body is rewritten": """
        <ir_version: 9, opset_import: ["" : 20, "local" : 1]>
        main (float[3,N] x) => (bool mask, int64[k] size) { s = Shape (x) size = Abs (s) y, mask = local.F (x) }
        <domain: "local", opset_import: ["" : 20]>
        F (x) => (y, mask) { first = Size (x) float = Cast <to = 1> (first) y, mask = Dropout (float) }""",
    "what a function is called with is known once that is folded": """
        <ir_version: 9, opset_import: ["" : 20, "local" : 1]>
        main (float[3,N] x, float one) => (int64 y) { v, m = Dropout (one) n = Cast <to = 7> (m) y = local.F (x, n) }
        <domain: "local", opset_import: ["" : 20]>
        F (x, n) => (y) { size = Size (x) sum = Add (n, n) y = Mul (size, sum) }""",
}


@pytest.mark.parametrize("name", IN_FUNCTIONS)
def test_a_second_run_changes_nothing_where_functions_are_kept(name: str) -> None:
    model = onnx.parser.parse_model(IN_FUNCTIONS[name])
    once = optimize(model, level=3, keep_functions=True)
    assert {"shape_folding", "dropout_elimination"} <= {one.transformer for one in once.summary.passes}
    twice = optimize(to_bytes(once.model), level=3, keep_functions=True, verify=False)
    assert [one.transformer for one in twice.summary.passes] == []


class There(Swap):
    """Elu becomes Neg."""

    roots = ("Elu",)


class AndBack(Swap):
    """Neg becomes Elu."""

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Neg",)
    becomes = "Elu"


class LateConstant(Swap):
    """Elu becomes Max with the Neg of a constant."""

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Elu",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        literal = ir.node("Constant", [], {"value_floats": [1.0, 2.0]})
        return ir.node("Max", [found.value, ir.node("Neg", literal.outputs).outputs[0]])


def test_constants_of_higher_levels_are_folded_in_the_same_run() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        main (float[2] x) => (float[2] y) { y = Elu (x) }""")
    result = optimize(model, level=3, verify=False, transformers=[LateConstant()])
    assert [node.op_type for node in result.model.graph] == ["Max"]


def test_levels_that_undo_one_another_are_told() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        main (float[N] x) => (float[N] y) { y = Elu (x) }""")
    with pytest.warns(RuntimeWarning, match="all 10 rounds of levels changed the graph"):
        result = optimize(model, level=2, verify=False, transformers=[There(), AndBack()])
    assert result.summary.bound_reached == (2,)
