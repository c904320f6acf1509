"""Assignments along an inner axis do without the Transposes around them; other scatters and other orders stay."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "scatter_transpose_elimination"
HEAD = '<ir_version: 10, opset_import: ["" : 18]>'


def scatter(
    x: str,
    u: str,
    order: str,
    back: str,
    *,
    size: int = 8,
    body: str = "",
    inputs: str = "",
    outputs: str = "",
    indices: str = "i",
    attributes: str = "",
) -> str:
    """Rows at three different positions of an axis of this size: TopK gives no place twice."""
    return f"""{HEAD} main (float[{x}] x, float[{u}] u, float[{size}] p{inputs}) => (float[{x}] y{outputs})
        <int64[1] three = {{3}}, int64[1] last = {{-1}}> {{
            v, places = TopK (p, three) i = Unsqueeze (places, last)
            t = Transpose <perm = {order}> (x)
            s = ScatterND {attributes} (t, {indices}, u) {body}
            y = Transpose <perm = {back}> (s) }}"""


@pytest.mark.parametrize(
    ("x", "u", "order", "back", "places"),
    [
        ("B,2,8,4", "3,B,2,4", "[2, 0, 1, 3]", "[1, 2, 0, 3]", 3),  # a decoder's cache
        ("B,8,2,4", "3,B,2,4", "[1, 0, 2, 3]", "[1, 0, 2, 3]", 2),
        ("2,3,8", "3,2,3", "[2, 0, 1]", "[1, 2, 0]", 3),
        ("B,C,8", "3,C,B", "[2, 1, 0]", "[2, 1, 0]", 3),
        ("8,B,4", "3,4,B", "[0, 2, 1]", "[0, 2, 1]", 1),
        ("0,2,8", "3,0,2", "[2, 0, 1]", "[1, 2, 0]", 3),
    ],
)
def test_rows_are_written_where_they_are(x: str, u: str, order: str, back: str, places: int) -> None:
    model = check_rewrites(PASS, scatter(x, u, order, back), ops={"Transpose": 1, "ScatterND": 1})
    (node,) = (node for node in model.graph if node.op_type == "ScatterND")
    (moved,) = (node for node in model.graph if node.op_type == "Transpose")
    assert node.inputs[0] is model.graph.inputs[0]
    assert node.inputs[2] is moved.outputs[0]
    assert moved.inputs[0] is model.graph.inputs[1]
    assert node.inputs[1] is not None
    assert node.inputs[1].shape is not None
    assert node.inputs[1].shape[-1] == places


@pytest.mark.parametrize("reduction", ["add", "max"])
def test_what_is_there_may_be_combined_with_what_comes(reduction: str) -> None:
    text = scatter("B,2,8", "3,B,2", "[2, 0, 1]", "[1, 2, 0]", attributes=f'<reduction = "{reduction}">')
    model = check_rewrites(PASS, text, ops={"Transpose": 1, "ScatterND": 1})
    (node,) = (node for node in model.graph if node.op_type == "ScatterND")
    assert node.attributes["reduction"].as_string() == reduction


def test_positions_from_the_end() -> None:
    text = scatter("B,2,8", "3,B,2", "[2, 0, 1]", "[1, 2, 0]", indices="k").replace(
        " t = ", " eight = Constant <value_int = 8> () k = Sub (i, eight) t = "
    )
    check_rewrites(PASS, text, ops={"Transpose": 1})


USUAL = ("B,2,8", "3,B,2", "[2, 0, 1]", "[1, 2, 0]")


test_keeps = keeps(
    PASS,
    [
        ("the axes do not go back", scatter("2,2,8", "3,2,2", "[2, 0, 1]", "[2, 1, 0]")),
        ("others use the result with moved axes", scatter(*USUAL, body="z = Neg (s)", outputs=", float[8,B,2] z")),
        ("others use the tensor with moved axes", scatter(*USUAL, body="z = Neg (t)", outputs=", float[8,B,2] z")),
        ("the indices are constants", scatter(*USUAL, indices="fixed").replace(" t = ", " fixed = Constant <value = int64[3,1] {2, 0, 1}> () t = ")),  # noqa: E501
        ("more than one axis", scatter("8,8,B", "3,B", "[1, 0, 2]", "[1, 0, 2]", indices="pairs").replace(" t = ", " pairs = Concat <axis = 1> (i, i) t = ")),  # noqa: E501
        ("no Transpose comes before", scatter(*USUAL).replace("Transpose <perm = [2, 0, 1]> (x)", "Relu (q)").replace("float[8] p", "float[8] p, float[8,B,2] q")),  # noqa: E501
        ("no ScatterND comes before (w)", scatter(*USUAL).replace("(t, i, u)", "(t, i, u) w = Neg (s)").replace("(s) }", "(w) }")),  # noqa: E501
    ],
)  # fmt: skip
