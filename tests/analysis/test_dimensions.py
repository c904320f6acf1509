"""Sizes for inputs: symbols everywhere, fixed sizes by shapes only; what was said of the old sizes is dropped."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.analysis.dimensions import override, sizes_of_symbols
from ortopt.errors import UsageError
from ortopt.testing import parse

MODEL = """
main (float[N,8] x, float[N,M] z, float[4] b, float[N,4] q) => (float[N,4] y, float[N,M] r) <float[N,4] m> {
    m = Identity (q)
    y = Add (m, b)
    r = Relu (z)
}"""


def shapes_of(model: ir.Model) -> dict[str, list[int | str | None] | None]:
    """What the model declares, by name."""
    graph = model.graph
    values = (*graph.inputs, *(value for node in graph for value in node.outputs))
    return {
        value.name or "": None
        if value.shape is None
        else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        for value in values
    }


def test_a_size_by_name_stands_wherever_the_name_does() -> None:
    model = parse(MODEL)
    assert override(model, {"N": 2}) == frozenset()
    assert shapes_of(model) == {
        "x": [2, 8], "z": [2, "M"], "b": [4], "q": [2, 4], "m": [2, 4], "y": [2, 4], "r": [2, "M"],
    }  # fmt: skip


def test_a_shape_gives_a_size_to_its_symbols_everywhere() -> None:
    model = parse(MODEL)
    assert override(model, {}, {"z": (2, 5)}) == frozenset()
    assert shapes_of(model)["x"] == [2, 8]
    assert shapes_of(model)["y"] == [2, 4]
    assert shapes_of(model)["r"] == [2, 5]
    assert sizes_of_symbols(parse(MODEL), {}, {"z": (2, None)}) == {"N": 2}


def test_a_fixed_size_that_changes_leaves_nothing_that_was_said_of_computed_values() -> None:
    model = parse(MODEL)
    assert override(model, {"M": 3}, {"x": (None, 16)}) == {"x"}
    assert shapes_of(model) == {
        "x": ["N", 16], "z": ["N", 3], "b": [4], "q": ["N", 4], "m": None, "y": None, "r": None,
    }  # fmt: skip


def test_the_same_fixed_size_changes_nothing() -> None:
    model = parse(MODEL)
    assert override(model, {}, {"x": (None, 8)}) == frozenset()
    assert shapes_of(model) == shapes_of(parse(MODEL))


def test_dimensions_without_a_name_and_inputs_without_a_shape_get_sizes() -> None:
    model = parse("main (float[?,8] x, float[] y) => (float[?,8] z) { z = Add (x, y) }")
    model.graph.inputs[1].shape = None
    assert override(model, {}, {"x": (3, None), "y": (8,)}) == frozenset()
    assert shapes_of(model)["x"] == [3, 8]
    assert shapes_of(model)["y"] == [8]


def test_an_expression_follows_its_symbols() -> None:
    text = "main (float[past] x, float[seq] y, float[total] m) => (float[total] z) { z = Relu (m) }"
    model = parse(text)
    model.graph.inputs[2].shape = ir.Shape(["past + seq"])
    override(model, {}, {"x": (3,), "y": (2,)})
    assert shapes_of(model)["m"] == [5]
    with pytest.raises(UsageError, match=r"dimension 0 of input 'm' is past \+ seq = 5, not 6"):
        again = parse(text)
        again.graph.inputs[2].shape = ir.Shape(["past + seq"])
        override(again, {}, {"x": (3,), "y": (2,), "m": (6,)})


@pytest.mark.parametrize(
    ("dims", "shapes", "said"),
    [
        ({}, {"pixels": (1,)}, "no input is named 'pixels'; the inputs: 'x', 'z', 'b', 'q'"),
        ({}, {"x": (1, 2, 3)}, r"input 'x' has 2 dimensions, \[N, 8\], not 3"),
        ({}, {"x": (1, None), "z": (2, None)}, "the dimension N cannot be both 1 and 2"),
        ({"N": 3}, {"x": (1, None)}, "the dimension N cannot be both 3 and 1"),
        ({}, {"x": (None, 1 << 63)}, "a dimension of input 'x' cannot be"),
        ({"K": 3}, {}, "no input has a dimension named K; the names: M, N"),
    ],
)
def test_what_makes_no_sense_is_refused(
    dims: dict[str, int], shapes: dict[str, tuple[int | None, ...]], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        override(parse(MODEL), dims, shapes)


def test_a_near_name_is_suggested() -> None:
    model = parse("main (float[N] pixel_values) => (float[N] y) { y = Relu (pixel_values) }")
    with pytest.raises(UsageError, match="did you mean 'pixel_values'"):
        override(model, {}, {"pixel_value": (1,)})
