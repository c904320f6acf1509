"""What scales and shifts the channels of an InstanceNormalization becomes part of it."""

import re

import pytest

from ortopt.testing import check_rewrites

PASS = "instance_norm_fusion"
HEAD = "main (float[N,3,H,W] x) => (float[N,3,H,W] y)"
NUMBERS = {
    "one": "float[3] one = {1.0, 1.0, 1.0}",
    "nul": "float[3] nul = {0.0, 0.0, 0.0}",
    "s": "float[3] s = {1.0, 2.0, 3.0}",
    "b": "float[3] b = {0.5, 1.0, 0.25}",
    "g": "float[3,1,1] g = {2.0, 0.5, 4.0}",
    "d": "float[1,3,1,1] d = {0.5, 1.0, 2.0}",
    "k": "float k = {2.0}",
    "m": "float[3,1,1] m = {-2.0, 0.5, 4.0}",
    "w": "float[3] w = {1.0, 2.0, 3.0}",
    "z": "float[3,1,1] z = {1.0, 0.0, 3.0}",
    "i": "float[3,1,1] i = {1.0, inf, 3.0}",
}


def model(nodes: str, head: str = HEAD, **numbers: str) -> str:
    """A graph of some nodes, with the constants that they use."""
    used = [numbers.get(name, text) for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} <{', '.join(used)}> {{ {nodes} }}"


NORM = "n = InstanceNormalization <epsilon = 0.001> (x, one, nul)"
ONE = {"InstanceNormalization": 1, "Mul": 0, "Add": 0, "Div": 0, "Sub": 0}


@pytest.mark.parametrize(
    "nodes",
    [
        f"{NORM} p = Mul (n, g) y = Add (p, d)",
        f"{NORM} p = Mul (g, n) y = Add (d, p)",
        f"{NORM} y = Mul (n, k)",
        f"{NORM} y = Add (k, n)",
        f"{NORM} p = Div (n, g) y = Sub (p, d)",
        "n = InstanceNormalization (x, s, b) p = Mul (n, g) y = Add (p, d)",
        "n = InstanceNormalization (x, s, b) y = Mul (n, m)",
    ],
)
def test_fuses(nodes: str) -> None:
    result = check_rewrites(PASS, model(nodes), ops=ONE)
    epsilon = 0.001 if "epsilon" in nodes else 1e-5
    assert result.graph[0].attributes.get_float("epsilon") == pytest.approx(epsilon)
