"""log(1 + exp(x)) becomes Softplus(x) where it does not overflow."""

import re

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "softplus_fusion"
HEAD = "main (float[N,8] x) => (float[N,8] y)"
NUMBERS = {
    "zero": "float zero = {0.0}",
    "one": "float one = {1.0}",
    "two": "float two = {2.0}",
    "ten": "float ten = {10.0}",
    "limit": "float limit = {20.0}",
    "large": "float large = {100.0}",
}
EDGES = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 88.0, 100.0, -100.0, 19.9, 20.1, -8.0, 300.0]], np.float32)
LOG = "e = Exp (x) a = Add (e, one) l = Log (a)"


def model(nodes: str, head: str = HEAD, **numbers: str) -> str:
    """A graph of some nodes, with the constants that they use."""
    used = [numbers.get(name, text) for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} {'<' + ', '.join(used) + '>' if used else ''} {{ {nodes} }}"


SPELLINGS = [
    f"{LOG} c = Greater (x, limit) y = Where (c, x, l)",
    f"{LOG} c = GreaterOrEqual (x, limit) y = Where (c, x, l)",
    f"{LOG} c = Less (x, limit) y = Where (c, l, x)",
    f"{LOG} c = Less (limit, x) y = Where (c, x, l)",
    "e = Exp (x) a = Add (one, e) l = Log (a) c = Greater (x, limit) y = Where (c, x, l)",
    "m = Abs (x) n = Neg (m) e = Exp (n) a = Add (e, one) l = Log (a) r = Relu (x) y = Add (r, l)",
    "m = Abs (x) n = Neg (m) e = Exp (n) a = Add (e, one) l = Log (a) r = Max (zero, x) y = Add (l, r)",
]


@pytest.mark.parametrize("nodes", SPELLINGS)
def test_fuses(nodes: str) -> None:
    edges = model(nodes, "main (float[N,12] x) => (float[N,12] y)")
    check_rewrites(PASS, edges, "y = Softplus (x)", inputs={"x": EDGES})


@pytest.mark.parametrize(
    "bound",
    ["b = Sigmoid (x)", "b = Clip (x, , two)", "b = Min (x, two)", "b = Tanh (x)"],
)
def test_an_argument_that_is_never_large(bound: str) -> None:
    text = model(f"{bound} e = Exp (b) a = Add (e, one) y = Log (a)")
    check_rewrites(PASS, text, ops={"Softplus": 1, "Exp": 0, "Add": 0, "Log": 0})


def test_half_precision() -> None:
    bits = {"one": 0x3C00, "ten": 0x4900}  # as the text format wants them
    text = model(
        f"{LOG} c = Greater (x, ten) y = Where (c, x, l)",
        HEAD.replace("float", "float16"),
        **{name: f"float16 {name} = {{{number}}}" for name, number in bits.items()},
    )
    check_rewrites(PASS, text, "y = Softplus (x)")


NOT_IT = "it is not log(1 + exp(x))"
KEPT = {
    "it may overflow": ("exp(x) may overflow", model("e = Exp (x) a = Add (e, one) y = Log (a)")),
    "a bound that is too large": (
        "exp(x) may overflow",
        model("b = Clip (x, , large) e = Exp (b) a = Add (e, one) y = Log (a)"),
    ),
    "another sum": ("no operand is 1", model("e = Exp (x) a = Add (e, two) y = Log (a)")),
    "another power": ("no Exp comes before", model("e = Abs (x) a = Add (e, one) y = Log (a)")),
    "a guard that is too low": ("the threshold is not", model(f"{LOG} c = Greater (x, ten) y = Where (c, x, l)")),
    "a guard that is too high": ("the threshold is not", model(f"{LOG} c = Greater (x, large) y = Where (c, x, l)")),
    "the other way": (NOT_IT, model(f"{LOG} n = Neg (x) c = Greater (n, limit) y = Where (c, n, l)")),
    "the guard of another value": (NOT_IT, model(f"{LOG} n = Neg (x) c = Greater (n, limit) y = Where (c, x, l)")),
    "the larger of another value": (
        NOT_IT,
        model("m = Abs (x) n = Neg (m) e = Exp (n) a = Add (e, one) l = Log (a) r = Relu (n) y = Add (r, l)"),
    ),
    "the larger of x and another number": (
        NOT_IT,
        model("m = Abs (x) n = Neg (m) e = Exp (n) a = Add (e, one) l = Log (a) r = Max (x, one) y = Add (r, l)"),
    ),
    "the logarithm is needed": (
        "exp(x) may overflow",
        model(f"{LOG} c = Greater (x, limit) y = Where (c, x, l)", "main (float[8] x) => (float[8] y, float[8] l)"),
    ),
}


test_keeps = keeps(PASS, KEPT)
