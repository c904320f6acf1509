"""Parts of models: what stays, what becomes an input, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortopt
from ortopt.errors import InvalidModelError, UsageError
from ortopt.serialization.load import load
from ortopt.serialization.save import save, to_bytes
from ortopt.testing import parse
from ortopt.verification.runner import outputs_of

CHAIN = """
main (float[N,4] x, float[N,4] z) => (float[N,4] y, float[N,2] v) {
    w = Constant <value = float[4] {1,2,3,4}> ()
    a = Mul (x, w)
    b = Relu (a)
    c = Add (b, z)
    l, r = Split <axis = 1> (c)
    v = Neg (r)
    e = Exp (l)
    y = Concat <axis = 1> (e, r)
}"""


def part(text: str | ir.Model, *, inputs: str = "", outputs: str = "", **more: Any) -> ir.Model:
    """A part of a model, between names that are separated by blanks."""
    model = parse(text) if isinstance(text, str) else text
    return ortopt.extract(model, inputs=inputs.split() or None, outputs=outputs.split() or None, **more).model


def names(values: Any) -> list[str]:
    return [value.name for value in values]


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_what_lies_between_stays() -> None:
    model = part(CHAIN, inputs="a z", outputs="c")
    assert (ops(model), names(model.graph.inputs), names(model.graph.outputs)) == (["Relu", "Add"], ["a", "z"], ["c"])
    assert [(value.dtype, [str(dim) for dim in value.shape or ()]) for value in model.graph.inputs] == [
        (ir.DataType.FLOAT, ["N", "4"])
    ] * 2


def test_names_may_be_a_text_as_flags_have_them() -> None:
    model = ortopt.extract(parse(CHAIN), inputs="a, z", outputs="c,b").model
    assert (names(model.graph.inputs), names(model.graph.outputs)) == (["a", "z"], ["c", "b"])


def test_inputs_are_those_of_the_model_that_are_needed() -> None:
    model = part(CHAIN, outputs="b")
    assert (ops(model), names(model.graph.inputs)) == (["Constant", "Mul", "Relu"], ["x"])


def test_outputs_are_those_of_the_model() -> None:
    model = part(CHAIN, inputs="c")
    assert (ops(model), names(model.graph.outputs)) == (["Split", "Neg", "Exp", "Concat"], ["y", "v"])


def test_a_node_stays_whose_other_result_is_needed() -> None:
    model = part(CHAIN, inputs="l c", outputs="y")
    assert ops(model) == ["Split", "Exp", "Concat"]
    assert names(model.graph.inputs) == ["l", "c"]
    l = np.ones((1, 2), np.float32)  # noqa: E741
    c = np.arange(4, dtype=np.float32).reshape(1, 4)
    given = outputs_of(model, {"l": l, "c": c})["y"]
    np.testing.assert_allclose(given, [[np.e, np.e, 2, 3]], rtol=1e-6)


def test_the_parts_together_are_the_whole() -> None:
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((3, 4)).astype(np.float32) for name in "xz"}
    first, second = part(CHAIN, outputs="c"), part(CHAIN, inputs="c")
    whole = outputs_of(parse(CHAIN), inputs)
    halves = outputs_of(second, {"c": outputs_of(first, inputs)["c"]})
    for name, value in whole.items():
        np.testing.assert_array_equal(halves[name], value)


def test_the_original_is_not_changed() -> None:
    model = parse(CHAIN)
    before = to_bytes(model)
    part(model, inputs="a z", outputs="c", rename={"a": "first"})
    assert to_bytes(model) == before


WEIGHTS = "main (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w) b = Add (a, v) y = Mul (b, w) }"


def with_weights() -> ir.Model:
    """A model with two initializers, one used twice."""
    model = parse(
        WEIGHTS.replace("float[2,4] x)", "float[2,4] x, float[4,4] w, float[4] v)").replace("(b, w)", "(b, v)")
    )
    graph = model.graph
    for value, shape in zip(list(graph.inputs)[1:], ((4, 4), (4,)), strict=True):
        value.const_value = ir.tensor(np.ones(shape, np.float32), name=value.name)
        graph.register_initializer(value)
    del graph.inputs[1:]
    return model


def test_only_weights_that_are_needed_stay() -> None:
    assert list(part(with_weights(), outputs="a").graph.initializers) == ["w"]
    assert list(part(with_weights(), inputs="a", outputs="y").graph.initializers) == ["v"]


def test_a_weight_becomes_an_input() -> None:
    model = part(with_weights(), inputs="v a")
    assert (names(model.graph.inputs), list(model.graph.initializers)) == (["v", "a"], [])
    assert model.graph.inputs[0].type == ir.TensorType(ir.DataType.FLOAT)
    assert list(model.graph.inputs[0].shape or ()) == [4]


def test_a_default_value_that_is_no_input_becomes_a_constant() -> None:
    model = with_weights()
    model.graph.inputs.append(model.graph.initializers["v"])
    assert names(part(model, inputs="a", outputs="y").graph.inputs) == ["a"]
    both = part(model, inputs="a v", outputs="y")
    assert (names(both.graph.inputs), list(both.graph.initializers)) == (["a", "v"], ["v"])


CAPTURING = """
<ir_version: 10, opset_import: ["" : 17, "pkg" : 1, "other" : 1]>
main (float[N] x, bool c) => (float[N] y, float[N] q) {
    a = Relu (x)
    b = pkg.Twice (a)
    y = If (c) <
        then_branch = one () => (float[N] t) { t = Add (b, a) },
        else_branch = two () => (float[N] e) { e = Identity (x) }
    >
    q = other.Once (x)
}
<domain: "pkg", opset_import: ["" : 17, "pkg" : 1]>
Twice (x) => (y) { h = pkg.Half (x) y = Add (h, x) }
<domain: "pkg", opset_import: ["" : 17]>
Half (x) => (y) { y = Neg (x) }
<domain: "other", opset_import: ["" : 17]>
Once (x) => (y) { y = Abs (x) }
"""


def test_what_nested_graphs_capture_comes_with_them() -> None:
    model = part(CAPTURING, outputs="y")
    assert ops(model) == ["Relu", "Twice", "If"]
    assert [name for _, name, _ in model.functions] == ["Twice", "Half"]
    assert model.opset_imports == {"": 17, "pkg": 1}
    assert ops(part(CAPTURING, outputs="q")) == ["Once"]
    assert part(CAPTURING, outputs="q").opset_imports == {"": 17, "other": 1}


def test_captured_values_become_inputs() -> None:
    model = part(CAPTURING, inputs="b a x c", outputs="y")
    assert ops(model) == ["If"]
    assert not model.functions
    arrays = {name: np.full(2, number, np.float32) for name, number in (("a", 1), ("b", 2), ("x", 3))}
    for condition, expected in ((True, 3), (False, 3)):
        np.testing.assert_array_equal(
            outputs_of(model, {**arrays, "c": np.array(condition)})["y"], np.full(2, expected, np.float32)
        )


REFUSED = {
    "input 'z' does not cut: no output needs it beside 'a'": ("a z", "b"),
    "input 'x' does not cut: no output needs it beside 'a', 'z'": ("x a z", "c"),
    "output 'c' needs the model's input 'z': add it to the inputs": ("a", "c"),
    "output 'y' needs the model's inputs 'x', 'z': add them to the inputs": ("w", "y"),
    "no value of the model is named 'bb'; did you mean 'b'?": ("bb", "c"),
    "'c' is to be an input and an output": ("c", "c"),
    "inputs names 'a' twice": ("a a z", "c"),
    "say by inputs or outputs which part of the model is meant": ("", ""),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_makes_no_sense_is_refused(said: str) -> None:
    inputs, outputs = REFUSED[said]
    with pytest.raises(UsageError) as caught:
        part(CHAIN, inputs=inputs, outputs=outputs)
    assert str(caught.value) == said


def test_values_of_nested_graphs_and_functions_cannot_be_cut() -> None:
    with pytest.raises(UsageError, match="'t' is computed in main/If:then_branch: only the main graph can be cut"):
        part(CAPTURING, outputs="t")
    with pytest.raises(UsageError, match=r"'h' is computed in function pkg\.Twice"):
        part(CAPTURING, outputs="h")


def test_an_input_needs_a_type() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 17, "foreign" : 1]>
        main (float[N] x) => (float[N] y) { a = foreign.Op (x) y = Relu (a) }"""
    )
    with pytest.raises(UsageError, match="the type of 'a' is not known: it cannot be an input"):
        part(model, inputs="a", outputs="y")


def test_an_empty_list_of_names_is_refused() -> None:
    for names_ in ({"inputs": []}, {"outputs": []}, {"outputs": ""}, {"inputs": " ,", "outputs": "y"}):
        with pytest.raises(UsageError):
            ortopt.extract(parse(CHAIN), **names_)  # type: ignore[arg-type]


def test_a_broken_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    with pytest.raises(InvalidModelError):
        ortopt.extract(tmp_path / "m.onnx", outputs=["y"])


def test_interfaces_get_new_names() -> None:
    model = part(CHAIN, inputs="a z", outputs="c", rename={"a": "first", "c": "sum"})
    assert (names(model.graph.inputs), names(model.graph.outputs)) == (["first", "z"], ["sum"])
    assert ops(model) == ["Relu", "Add"]
    with pytest.raises(UsageError, match="the name 'b' is taken"):
        part(CHAIN, inputs="a z", outputs="c", rename={"a": "b"})


def test_the_weights_of_a_large_file_stay_in_it(tmp_path: Path) -> None:
    model = with_weights()
    model.graph.initializers["w"].const_value = ir.tensor(np.ones((4, 4), np.float32), name="w")
    big = ir.Value(name="big", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1 << 18]))
    big.const_value = ir.tensor(np.ones(1 << 18, np.float32), name="big")
    model.graph.register_initializer(big)
    save(model, tmp_path / "m.onnx", external_data="copy")
    found = ortopt.extract(tmp_path / "m.onnx", outputs=["a"])
    found.save(tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").stat().st_size < 1000, "what is not needed is not written"
    assert list(tmp_path.glob("small*")) == [tmp_path / "small.onnx"], "a small part is one file"
    onnx.checker.check_model(tmp_path / "small.onnx", full_check=True)
    assert list(load(tmp_path / "small.onnx").graph.initializers) == ["w"]
