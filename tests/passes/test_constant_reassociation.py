"""Two constants in a row are one, unless the first does something of its own to x."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

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


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint64"])
def test_other_integers(kind: str) -> None:
    body = text("t = Sub (x, a) y = Sub (b, t)", 3, 5, kind)
    model = check_rewrites(PASS, body, ops={"Sub": 1}, numbers=kind not in {"int8", "uint8"})
    assert next(iter(model.graph.initializers.values())).const_value.numpy().item() == 8
