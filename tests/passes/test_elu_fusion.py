"""x where it is positive, a · (exp(x) - 1) elsewhere, becomes Elu(x) or Celu(x)."""

import re

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "elu_fusion"
HEAD = "main (float[N,8] v) => (float[N,8] y)"
NUMBERS = {
    "zero": "float zero = {0.0}",
    "one": "float one = {1.0}",
    "two": "float two = {2.0}",
    "shift": "float shift = {0.3}",
}


def model(nodes: str, head: str = HEAD, **numbers: str) -> str:
    """A graph of some nodes, with the constants that they use."""
    nodes = f"x = Add (v, shift) {nodes}"
    used = [numbers.get(name, text) for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} <{', '.join(used)}> {{ {nodes} }}"


FALL = "e = Exp (x) d = Sub (e, one)"
CHOICE = "c = Greater (x, zero) y = Where (c, x, d)"
SPELLINGS = {
    f"{FALL} {CHOICE}": 1.0,
    f"{FALL} c = LessOrEqual (x, zero) y = Where (c, d, x)": 1.0,
    f"{FALL} c = Less (zero, x) y = Where (c, x, d)": 1.0,
    f"e = Exp (x) f = Sub (e, one) d = Mul (f, two) {CHOICE}": 2.0,
    f"e = Exp (x) f = Mul (e, two) d = Sub (f, two) {CHOICE}": 2.0,
    f"{FALL} r = Relu (x) l = Min (d, zero) y = Add (r, l)": 1.0,
}


@pytest.mark.parametrize("nodes", SPELLINGS)
def test_fuses(nodes: str) -> None:
    result = check_rewrites(PASS, model(nodes), ops={"Add": 1, "Elu": 1, "Exp": 0, "Where": 0, "Relu": 0})
    assert result.graph[-1].attributes.get_float("alpha") == SPELLINGS[nodes]


@pytest.mark.parametrize("exponent", ["q = Div (x, two)", "q = Mul (x, half)"])
def test_celu(exponent: str) -> None:
    text = model(f"{exponent} e = Exp (q) f = Sub (e, one) d = Mul (f, two) {CHOICE}")
    if "half" in exponent:
        text = text.replace("<", "<float half = {0.5}, ", 1)
    check_rewrites(PASS, text, ops={"Add": 1, "Celu": 1, "Exp": 0, "Where": 0})


NOT_ELU = "it is not x where x is positive"
KEPT = {
    "another difference": (NOT_ELU, model(f"e = Exp (x) d = Sub (e, two) {CHOICE}")),
    "another rate": (NOT_ELU, model(f"q = Mul (x, two) e = Exp (q) d = Sub (e, one) {CHOICE}")),
    "another threshold": (NOT_ELU, model(f"{FALL} c = Greater (x, one) y = Where (c, x, d)")),
    "the other way": (NOT_ELU, model(f"{FALL} c = Less (x, zero) y = Where (c, x, d)")),
    "the power of another value": (NOT_ELU, model(f"n = Neg (x) e = Exp (n) d = Sub (e, one) {CHOICE}")),
    "halves of two values": (NOT_ELU, model(f"{FALL} n = Neg (x) r = Relu (n) l = Min (d, zero) y = Add (r, l)")),
    "another minimum": (NOT_ELU, model(f"{FALL} r = Relu (x) l = Min (d, one) y = Add (r, l)")),
    "zeros with signs": (
        "a zero would have the other sign",
        f"main (float[8] x) => (float[8] y) <float zero = {{0.0}}, float one = {{1.0}}> {{ {FALL} {CHOICE} }}",
    ),
    "the power is needed": (
        "Exp's result is used elsewhere",
        model(f"{FALL} {CHOICE} z = Neg (e)", "main (float[8] v) => (float[8] y, float[8] z)"),
    ),
}


test_keeps = keeps(PASS, KEPT)
