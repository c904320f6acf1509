"""Names of constants and imports of opsets that a file gives twice: what ONNX Runtime takes is what counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ortopt
from ortopt.errors import InvalidModelError
from ortopt.serialization import opset_imports
from ortopt.serialization.load import load
from tests.serialization import models
from tests.whole_models.unverified import LEVELS, check_levels, loads, optimized

FEEDS = {"x": np.float32([1, 2])}
FIVES = "w = Constant <value_floats = [5.0, 6.0]> ()"
SEVENS = "w = Constant <value_floats = [7.0, 8.0]> ()"
OVERRIDDEN = "main (float[2] x, float[2] w) => (float[2] y) {{ {} y = Add (x, w) }}"


def made(text: str, *weights: object) -> onnx.ModelProto:
    """A model with initializers that are all named w."""
    model = models.text(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(one), "w") for one in weights)
    return model


def added(nodes: str, *weights: object) -> onnx.ModelProto:
    model = made(OVERRIDDEN.format(nodes), *weights)
    del model.graph.input[1]
    return model


TEN, TWENTY = np.float32([10, 20]), np.float32([30, 40])
TAKEN = {
    "initializers that are equal": added("", TEN, TEN),
    "initializers": added("", TEN, TWENTY),
    "an initializer and a Constant": added(FIVES, TEN),
    "Constants": added(f"{FIVES} {SEVENS}"),
    "Constants, used in between": models.text(
        f"main (float[2] x) => (float[2] y) {{ {FIVES} a = Add (x, w) {SEVENS} y = Mul (a, w) }}"
    ),
    "a Constant that is used before": models.text(
        f"main (float[2] x) => (float[2] y) {{ y = Add (x, w) {FIVES} {SEVENS} }}"
    ),
    "an input and a Constant": made(OVERRIDDEN.format(FIVES)),
    "an input, an initializer and a Constant": made(OVERRIDDEN.format(FIVES), TEN),
    "an input and two initializers": made(OVERRIDDEN.format(""), TEN, TWENTY),
    "Constants that are outputs": models.text(
        f"main (float[2] x) => (float[2] y, float[2] w) {{ {FIVES} {SEVENS} y = Add (x, w) }}"
    ),
}


@pytest.mark.parametrize("what", TAKEN)
def test_the_constant_that_onnx_runtime_takes(what: str) -> None:
    for model in check_levels(TAKEN[what], FEEDS):
        onnx.checker.check_model(model)
    if "input" in what:
        check_levels(TAKEN[what], FEEDS | {"w": np.float32([100, 200])})


REFUSED = {
    "constants of different types": added("", TEN, np.array([1, 2])),
    "constants of different shapes": added(FIVES, np.ones(3, np.float32)),
    "a constant and a computed value": added("w = Neg (x)", TEN),
    "a Constant and a computed value": added(f"{FIVES} w = Neg (x)"),
    "computed values": added("w = Neg (x) w = Abs (x)"),
    "results of one node": models.text("main (float[2] x) => (float[1] w) { w, w = Split (x) }"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_onnx_runtime_refuses(what: str) -> None:
    assert not loads(REFUSED[what])
    with pytest.raises(InvalidModelError, match="'w'"):
        load(REFUSED[what])


# -- opsets -----------------------------------------------------------------------------------------------------------

Imports = list[tuple[str, int]]
SUM = "main (float[2,3] x) => (float[2] y) { s = ReduceSum <axes = [1], keepdims = 0> (x) y = Relu (s) }"


def importing(imports: Imports, text: str = SUM) -> onnx.ModelProto:
    model = models.text(text, opset=12)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*one) for one in imports)
    return model


@pytest.mark.parametrize(
    "imports",
    [[("", 13), ("ai.onnx", 12)], [("ai.onnx", 13), ("", 12)], [("", 13), ("", 12)], [("", 12), ("ai.onnx", 12)]],
)
def test_the_last_import_holds(imports: Imports) -> None:
    model = importing(imports)
    for one in check_levels(model, {"x": np.ones((2, 3), np.float32)})[:2]:
        assert [(entry.domain, entry.version) for entry in one.opset_import] == [("", 12)]
    assert not loads(importing(imports[::-1])) or imports[0][1] == 12


@pytest.mark.parametrize(
    "imports", [[("", 12), ("ai.onnx", 13)], [("ai.onnx", 13), ("", 12)], [("", 13), ("ai.onnx", 12)]]
)
def test_functions_are_read_with_the_version_of_the_model(imports: Imports) -> None:
    call = "main (float[2,3] x) => (float[2] y) { y = f.F (x) }"
    model = importing([("", 12), ("f", 1)], call.replace("f.F", "Relu"))
    model.graph.node[0].domain, model.graph.node[0].op_type = "f", "F"
    nodes = [helper.make_node("ReduceSum", ["a"], ["b"], axes=[1], keepdims=0)]
    entries = [helper.make_opsetid(*one) for one in imports]
    model.functions.append(helper.make_function("f", "F", ["a"], ["b"], nodes, entries))
    assert load(model).functions["f", "F", ""].opset_imports == {"": 12}
    check_levels(model, {"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize(
    ("imports", "text"),
    [
        ([("com.microsoft", 1)], "main (float[2] x) => (float[2] y) { y = Relu (x) }"),
        ([("", 17)], "main (float[2] x) => (float[2] y) { y = com.microsoft.QuickGelu (x) }"),
        ([("", 17)], "main (float[2] x) => (float[2] y) { y = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x) }"),
    ],
)
def test_imports_that_onnx_runtime_takes_for_granted(imports: Imports, text: str) -> None:
    model = importing([("", 17)], "main (float[2] x) => (float[2] y) { y = Relu (x) }")
    model.CopyFrom(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 2, "com.microsoft": 1]> {text}')
    )
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*one) for one in imports)
    for one in check_levels(model, FEEDS):
        assert {node.domain for node in one.graph.node} <= {entry.domain for entry in one.opset_import}


def test_the_newest_opset_is_that_of_the_kernels() -> None:
    data = json.loads((Path(ortopt.__file__).parent / "analysis" / "data" / "kernels-cpu.json").read_bytes())
    assert opset_imports.NEWEST_OF_ONNX_RUNTIME[""] == data["max_opset"]


@pytest.mark.parametrize("imports", [[("", 17)], [("com.microsoft", 1)], [("far", 3)], [("", 17), ("far", 3)]])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("text", ["main (float[2] x) => (float[2] x) { }", "main () => (float[2] y) { y = Relu (w) }"])
def test_a_model_of_no_nodes_keeps_an_import(imports: Imports, level: int, text: str) -> None:
    model = importing(imports, text)
    if model.graph.node:
        if imports[0][0]:
            pytest.skip("its node is of ai.onnx")
        model.graph.initializer.append(numpy_helper.from_array(TEN, "w"))
    written = optimized(model, level)
    onnx.checker.check_model(written)
    assert loads(written)
    assert written.opset_import[0].version == imports[0][1]
