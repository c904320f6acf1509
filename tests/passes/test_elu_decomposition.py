"""Exponential linear units are arithmetic with one exponential, on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.options import Options
from ortopt.testing import check_rewrites

PASS = "elu_decomposition"
DEFAULT = Options()
MAXIMUM = {"Min": 1, "Exp": 1, "Sub": 1, "Max": 1, "Add": 1}
TWO_SIDES = {"Min": 1, "Exp": 1, "Sub": 1, "Max": 0, "Relu": 1, "Add": 2}
EDGES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-30, -1e-8, -1e-3, -0.5, -87.0, -104.0, 90.0, 3e38, -3e38)
SPELLED = "e = Exp (x) d = Sub (e, one) c = Greater (x, zero) y = Where (c, x, d)"


def model(
    nodes: str = "y = Elu (x)", size: str = "N,64,8,8", kind: str = "float", before: str = "x = Add (v, zero)"
) -> str:
    names = ("zero", "one")
    numbers = [f"{kind} {name} = {{{place}}}" for place, name in enumerate(names) if name in before + nodes]
    return f"main ({kind}[{size}] v) => ({kind}[{size}] y) <{', '.join(numbers)}> {{ {before} {nodes} }}"


REWRITTEN = {
    "Elu": ("y = Elu (x)", MAXIMUM),
    "a lower limit": ("y = Elu <alpha = 0.5> (x)", {**MAXIMUM, "Mul": 1}),
    "steeper than x": ("y = Elu <alpha = 1.5> (x)", {**TWO_SIDES, "Mul": 1}),
    "Celu": ("y = Celu (x)", {**MAXIMUM, "Mul": 0}),
    "Celu with a limit": ("y = Celu <alpha = 0.3> (x)", {**MAXIMUM, "Mul": 2}),
    "Celu with a far limit": ("y = Celu <alpha = 3.0> (x)", {**MAXIMUM, "Mul": 2}),
    "Selu": ("y = Selu (x)", {**TWO_SIDES, "Mul": 2}),
    "Selu with parameters": ("y = Selu <alpha = 0.7, gamma = 1.0> (x)", {**MAXIMUM, "Mul": 1}),
    "spelled out": (SPELLED, {**MAXIMUM, "Where": 0}),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    nodes, ops = REWRITTEN[name]
    x = (3 * np.random.default_rng(0).standard_normal((2, 64, 8, 8))).astype(np.float32)
    check_rewrites(PASS, model(nodes), ops=ops, inputs={"v": x}, options=DEFAULT)


@pytest.mark.parametrize(
    "nodes", ["y = Elu (x)", "y = Elu <alpha = 1.5> (x)", "y = Celu <alpha = 0.3> (x)", "y = Selu (x)"]
)
def test_numbers_at_the_edges(nodes: str) -> None:
    x = np.resize(np.array(EDGES, np.float32), (1, 64, 8, 8))
    check_rewrites(PASS, model(nodes), inputs={"v": x}, options=DEFAULT)
