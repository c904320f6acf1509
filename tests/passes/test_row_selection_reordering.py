"""One row is selected before what treats each row by itself."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "row_selection_reordering"
CONSTANTS = {
    "w": "float[4,4] w = {1, 2, 0, 1, 0.5, 0, 1, 1, 0, 1, 1, 0, 2, 0, 0, 1}",
    "b": "float[4] b = {1, -2, 3, 0.5}",
    "i": "int64 i = {1}",
    "last": "int64 last = {-1}",
    "two": "int64[1] two = {1}",
    "j": "int64 j = {0}",
}


def model(nodes: str, x: str = "float[N,S,4]", y: str = "float[N,4] y") -> str:
    words = nodes.replace(",", " ").replace("(", " ").replace(")", " ").split()
    used = ", ".join(text for name, text in CONSTANTS.items() if name in words)
    return f"main ({x} x) => ({y}) <{used}> {{ {nodes} }}"


FEED_FORWARD = """s = Add (x, b) l = LayerNormalization <axis = 2> (s, b, b) m = MatMul (l, w) c = Add (m, b)
    r = Gelu (c) n = MatMul (r, w) d = Add (n, b) t = Add (s, d) y = Gather <axis = 1> (t, i)"""


def test_a_feed_forward_network() -> None:
    """The residual is selected too; both are one value."""
    check_rewrites(
        PASS,
        model(FEED_FORWARD),
        model("""g = Gather <axis = 1> (x, i) s = Add (g, b) l = LayerNormalization <axis = -1> (s, b, b)
            m = MatMul (l, w) c = Add (m, b) r = Gelu (c) n = MatMul (r, w) d = Add (n, b)
            y = Add (s, d)"""),
        opset=20,
    )


@pytest.mark.parametrize("index", ["i", "last"])
@pytest.mark.parametrize(("axis", "y"), [(1, "float[N,4] y"), (0, "float[S,4] y")])
def test_other_places(index: str, axis: int, y: str) -> None:
    text = model(
        f"r = Gelu (x) y = Gather <axis = {axis}> (r, {index})", "float[3,S,4]" if axis == 0 else "float[N,3,4]", y
    )
    check_rewrites(PASS, text.replace("float[S,4] y", "float[S,4] y"), ops={"Gather": 1, "Gelu": 1}, opset=20)


TWO = "r = Gelu (x) p = Gather <axis = 1> (r, i) z = Gather <axis = -2> (r, i)"


def test_several_readers_of_one_place() -> None:
    text = model(f"{TWO} y = Relu (p)", y="float[N,4] y, float[N,4] z")
    check_rewrites(PASS, text, ops={"Gather": 1, "Gelu": 1}, opset=20)


KEPT = {
    "other rows are read": model(
        "r = Gelu (x) y = Gather <axis = 1> (r, i) z = Gather <axis = 1> (r, j)", y="float[N,4] y, float[N,4] z"
    ),
    "all rows are asked for": model("r = Gelu (x) y = Gather <axis = 1> (r, i)", y="float[N,4] y, float[N,S,4] r"),
    "it selects no single place": model("r = Gelu (x) y = Gather <axis = 1> (r, two)", y="float[N,1,4] y"),
    "it selects no row": model("r = Gelu (x) y = Gather <axis = 2> (r, i)", y="float[N,S] y"),
    "two outputs are the same row": model(TWO, y="float[N,4] p, float[N,4] z"),
    "rows are mixed": model("r = Softmax <axis = 1> (x) y = Gather <axis = 1> (r, i)"),
    "nothing in this graph computes": model("y = Gather <axis = 1> (x, i)"),
    "an operand has more than one axis": "main (float[N,S,4] x, float[1,S,4] p) => (float[N,4] y) <int64 i = {1}> { r = Add (x, p) y = Gather <axis = 1> (r, i) }",  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(PASS, KEPT[because], None if because.startswith("an operand") else because, opset=20)
