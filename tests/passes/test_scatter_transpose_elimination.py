"""Assignments along an inner axis do without the Transposes around them; other scatters and other orders stay."""

import pytest

from ortopt.testing import check_rewrites

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
