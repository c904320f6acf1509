"""x where it is positive, a · (exp(x) - 1) elsewhere, becomes Elu(x) or Celu(x)."""

import re

import pytest

from ortopt.testing import check_rewrites

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
