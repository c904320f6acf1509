"""Two constants in a row are one, unless the first does something of its own to x."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "constant_reassociation"
TEXT = "main ({kind}[N] x) => ({kind}[N] y) <{kind} a = {{{a}}}, {kind} b = {{{b}}}> {{ {body} }}"


def text(body: str, a: object = 2, b: object = 3, kind: str = "float") -> str:
    return TEXT.format(kind=kind, a=a, b=b, body=body)


@pytest.mark.parametrize(
    ("body", "a", "b", "after"),
    [
        ("t = Add (x, a) y = Add (t, b)", 2, 3, ("Add (x, c)", 5)),
        ("t = Add (a, x) y = Sub (t, b)", -2, 3, ("Add (x, c)", -5)),
        ("t = Sub (x, a) y = Sub (t, b)", 2, 3, ("Add (x, c)", -5)),
        ("t = Sub (a, x) y = Add (t, b)", 2, 3, ("Sub (c, x)", 5)),
        ("t = Sub (a, x) y = Sub (b, t)", -2, 3, ("Add (x, c)", 5)),
        ("t = Sub (x, a) y = Sub (b, t)", 2, 3, ("Sub (c, x)", 5)),
        ("t = Mul (x, a) y = Mul (b, t)", 2, 3, ("Mul (x, c)", 6)),
        ("t = Div (x, a) y = Mul (t, b)", 2, 3, ("Mul (x, c)", 1.5)),
        ("t = Mul (x, a) y = Div (t, b)", 6, 4, ("Mul (x, c)", 1.5)),
        ("t = Div (x, a) y = Div (t, b)", 2, 4, ("Mul (x, c)", 0.125)),
    ],
)
@pytest.mark.parametrize("kind", ["float", "double"])
def test_floats(body: str, a: float, b: float, after: tuple[str, float], kind: str) -> None:
    op, number = after
    check_rewrites(
        PASS,
        text(body, a, b, kind),
        f"main ({kind}[N] x) => ({kind}[N] y) <{kind} c = {{{number}}}> {{ y = {op} }}",
        inputs={
            "x": np.array([0.0, -0.0, 1.5, -7.0, np.inf, np.nan], kind.replace("double", "f8").replace("float", "f4"))
        },
    )


@pytest.mark.parametrize(
    ("body", "a", "b"),
    [
        ("t = Add (x, a) y = Sub (t, b)", 2**31 - 1, -(2**31)),
        ("t = Sub (a, x) y = Sub (b, t)", -(2**31), 5),
        ("t = Mul (x, a) y = Mul (t, b)", 2**30 + 3, 7),
        ("t = Mul (x, a) y = Mul (t, b)", 0, 7),
    ],
)
def test_integers_wrap_around(body: str, a: int, b: int) -> None:
    x = np.array([0, 1, -1, 2**31 - 1, -(2**31), 123456789], np.int32)
    check_rewrites(PASS, text(body, a, b, "int32"), inputs={"x": x})


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint64"])
def test_other_integers(kind: str) -> None:
    body = text("t = Sub (x, a) y = Sub (b, t)", 3, 5, kind)
    model = check_rewrites(PASS, body, ops={"Sub": 1}, numbers=kind not in {"int8", "uint8"})
    assert next(iter(model.graph.initializers.values())).const_value.numpy().item() == 8


def test_shapes() -> None:
    check_rewrites(
        PASS,
        """main (float[N,2] x) => (float[N,2] y) <float[2] a = {1, 2}, float[1,1] b = {3}> { t = Add (x, a) y = Add (t, b) }""",  # noqa: E501
        "main (float[N,2] x) => (float[N,2] y) <float[1,2] c = {4, 5}> { y = Add (x, c) }",
    )
    check_keeps(
        PASS,
        """main (float[2,2] x) => (float[2,2] y) <float[2,1] a = {1, 2}, float[1,2] b = {3, 4}> {
            t = Add (x, a) y = Add (t, b) }""",
        "both constants together are larger",
    )


test_keeps = keeps(
    PASS,
    [
        ("differ in sign", text("t = Add (x, a) y = Sub (t, b)", 8388608, 8388608)),
        ("differ in sign", text("t = Add (x, a) y = Add (t, b)", 0, 3)),
        ("differ in sign", text("t = Add (x, a) y = Add (t, b)", -0.0, -0.0)),
        ("lost in the other", text("t = Add (x, a) y = Add (t, b)", 100000000, 1)),
        ("overflow or vanish", text("t = Mul (x, a) y = Mul (t, b)", 1e20, 1e20)),
        ("overflow or vanish", text("t = Mul (x, a) y = Mul (t, b)", 1e-20, 1e-20)),
        ("overflow or vanish", text("t = Mul (x, a) y = Mul (t, b)", 0, 1)),
        ("overflow or vanish", text("t = Div (x, a) y = Mul (t, b)", 0, 1)),
        ("x divides", text("t = Div (a, x) y = Mul (t, b)")),
        ("x divides", text("t = Mul (x, a) y = Div (b, t)")),
        ("divide with a rest", text("t = Div (x, a) y = Mul (t, b)", kind="int64")),
        ("divide with a rest", text("t = Div (x, a) y = Div (t, b)", kind="int64")),
        ("no Mul or Div comes before", text("t = Add (x, a) y = Mul (t, b)")),
        ("used elsewhere", text("t = Add (x, a) y = Add (t, b)").replace("[N] y)", "[N] y, float[N] t)")),
        ("not a constant", text("t = Add (x, a) y = Add (t, x)")),
        ("it is computed in another graph", "main (bool c, float[N] x) => (float[N] y) <float a = {1}, float b = {2}> { t = Add (x, a) y = If (c) <then_branch = p () => (o) { o = Add (t, b) }, else_branch = q () => (r) { r = Neg (x) }> }"),  # noqa: E501
    ],
)  # fmt: skip
