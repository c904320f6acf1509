"""New names of inputs and outputs: what captures a value follows; names that are taken are refused."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.errors import UsageError
from ortopt.graph.names import check_names, rename
from ortopt.semantics import QUANTIZATION_KEY
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse

MODEL = """
main (float[N] x, bool c) => (float[N] y, float[N] x) {
    y = If (c) <
        then_branch = one () => (float[N] t) { t = Neg (x) },
        else_branch = two () => (float[N] e) { e = Abs (x) }
    >
}"""


def renamed(text: str, **names: str) -> ir.Model:
    """A model with new names, written and read again."""
    model = parse(text)
    check_names(model, names)
    rename(model, names)
    validate(model)
    return load(to_bytes(model))


def test_nested_graphs_follow() -> None:
    graph = renamed(MODEL, x="pixels", y="scores").graph
    assert [value.name for value in graph.inputs] == ["pixels", "c"]
    assert [value.name for value in graph.outputs] == ["scores", "pixels"], "a value has one name"
    branch = next(iter(graph)).attributes["then_branch"].as_graph()
    assert next(iter(branch)).inputs[0] is graph.inputs[0]


def test_two_may_exchange_their_names() -> None:
    graph = renamed("main (float[N] a, float[N] b) => (float[N] y) { y = Sub (a, b) }", a="b", b="a").graph
    assert [value.name for value in graph.inputs] == ["b", "a"]
    assert list(next(iter(graph)).inputs) == list(graph.inputs)


def test_weights_that_are_inputs_or_outputs_follow() -> None:
    model = parse("main (float[2] x, float[2] w) => (float[2] y, float[2] w) { y = Add (x, w) }")
    weight = model.graph.inputs[1]
    tensor = ir.tensor([1.0, 2.0], dtype=ir.DataType.FLOAT, name="w")
    weight.const_value = tensor
    model.graph.register_initializer(weight)
    rename(model, {"w": "bias"})
    assert list(load(to_bytes(model)).graph.initializers) == ["bias"]
    assert tensor.name == "w", "the tensor may be shared with another model"


def test_annotations_follow() -> None:
    model = parse("main (float[2] x, float s) => (float[2] y) { a = Relu (x) y = Mul (a, s) }")
    value = next(iter(model.graph)).outputs[0]
    value.meta[QUANTIZATION_KEY] = {"SCALE_TENSOR": "s"}
    rename(model, {"s": "scale"})
    assert value.meta[QUANTIZATION_KEY] == {"SCALE_TENSOR": "scale"}


def test_what_came_to_bear_the_name_meanwhile_gives_way() -> None:
    model = parse("main (float[N] x) => (float[N] y) { a = Relu (x) y = Neg (a) }")
    check_names(model, {"y": "z"})
    next(iter(model.graph)).outputs[0].name = "z"
    rename(model, {"y": "z"})
    validate(model)
    assert [node.outputs[0].name for node in model.graph] == ["z_1", "z"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"t": "z"}, "no input or output is named 't'"),
        ({"pixel": "z"}, "no input or output is named 'pixel'"),
        ({"x": "y"}, "the name 'y' is taken"),
        ({"x": "t"}, "the name 't' is taken"),
    ],
)
def test_names_that_cannot_be_given_are_refused(names: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_names(parse(MODEL), names)
