"""x · tanh(log(1 + exp(x))) becomes Mish(x)."""

import re

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "mish_fusion"
HEAD = "main (float[N,12] x) => (float[N,12] y)"
NUMBERS = {"one": "float one = {1.0}", "limit": "float limit = {20.0}"}
EDGES = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 88.0, 100.0, -100.0, 19.9, 20.1, -8.0, 300.0]], np.float32)
LOG = "e = Exp (x) a = Add (e, one) l = Log (a)"
SPELLINGS = [
    "s = Softplus (x) t = Tanh (s) y = Mul (x, t)",
    "s = Softplus (x) t = Tanh (s) y = Mul (t, x)",
    f"{LOG} t = Tanh (l) y = Mul (x, t)",
    f"{LOG} c = Greater (x, limit) s = Where (c, x, l) t = Tanh (s) y = Mul (x, t)",
    "m = Abs (x) n = Neg (m) e = Exp (n) a = Add (e, one) l = Log (a) r = Relu (x) s = Add (r, l) t = Tanh (s) "
    "y = Mul (x, t)",
]


def model(nodes: str, head: str = HEAD) -> str:
    """A graph of some nodes, with the constants that they use."""
    used = [text for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} {'<' + ', '.join(used) + '>' if used else ''} {{ {nodes} }}"


@pytest.mark.parametrize("nodes", SPELLINGS)
def test_fuses(nodes: str) -> None:
    check_rewrites(PASS, model(nodes), "y = Mish (x)", opset=18, inputs={"x": EDGES})


def test_half_precision() -> None:
    text = model(SPELLINGS[0]).replace("float", "float16")
    check_rewrites(PASS, text, "y = Mish (x)", opset=18)


KEPT = {
    "another product": (
        "the product is of something else",
        model("n = Neg (x) s = Softplus (x) t = Tanh (s) y = Mul (n, t)"),
    ),
    "a square": ("the value is used elsewhere", model("s = Softplus (x) t = Tanh (s) y = Mul (t, t)")),
    "no softplus": ("no Softplus or Log or Where or Add comes before", model("t = Tanh (x) y = Mul (x, t)")),
    "a sum": ("no Mul comes after", model("s = Softplus (x) t = Tanh (s) y = Add (x, t)")),
    "the softplus is needed": (
        "Softplus's result is used elsewhere",
        model("s = Softplus (x) t = Tanh (s) y = Mul (x, t)", "main (float[8] x) => (float[8] y, float[8] s)"),
    ),
}


test_keeps = keeps(PASS, KEPT, opset=18)


def test_keeps_before_there_is_an_op() -> None:
    check_keeps(PASS, model(SPELLINGS[0]), opset=17)
