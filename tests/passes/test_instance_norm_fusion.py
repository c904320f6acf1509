"""What scales and shifts the channels of an InstanceNormalization becomes part of it."""

import re

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

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


def test_other_ranks() -> None:
    text = model(f"{NORM} y = Mul (n, g)", "main (float[N,3,L] x) => (float[N,3,L] y)", g="float[3,1] g = {2, 3, 4}")
    check_rewrites(PASS, text, ops=ONE)


KEPT = {
    "columns": (
        "it is not one number a channel",
        model(f"{NORM} y = Mul (n, w)", "main (float[N,3,4,3] x) => (float[N,3,4,3] y)"),
    ),
    "a constant that enlarges the rank": (
        "the constant enlarges the rank",
        model(
            f"{NORM} y = Mul (n, g)", "main (float[N,3,4] x) => (float[3,N,3,4] y)", g="float[3,1,1,1] g = {2, 3, 4}"
        ),
    ),
    "an unknown rank": (
        "the shape is unknown",
        model(f"{NORM} y = Mul (n, g)", "main (float[] x) => (float[] y)"),
    ),
    "a factor that is computed": (
        "not a constant",
        model(f"{NORM} y = Mul (n, f)", "main (float[N,3,H,W] x, float f) => (float[N,3,H,W] y)"),
    ),
    "a scale that is computed": (
        "not a constant",
        model(
            "n = InstanceNormalization (x, f, nul) y = Mul (n, g)",
            "main (float[N,3,H,W] x, float[3] f) => (float[N,3,H,W] y)",
        ),
    ),
    "it divides by 0": ("it divides by 0", model(f"{NORM} y = Div (n, z)")),
    "a factor of 0": ("the factor is out of range", model(f"{NORM} y = Mul (n, z)")),
    "an infinite factor": ("a number is not finite", model(f"{NORM} y = Mul (n, i)")),
    "summands of different signs": (
        "differ in sign",
        model("n = InstanceNormalization (x, s, b) y = Sub (n, d)"),
    ),
    "the other way": ("it divides, or is subtracted", model(f"{NORM} y = Div (k, n)")),
    "the normalized value is needed": (
        "the value is used elsewhere",
        model(f"{NORM} y = Mul (n, g)", "main (float[N,3,H,W] x) => (float[N,3,H,W] y, float[N,3,H,W] n)"),
    ),
}


test_keeps = keeps(PASS, KEPT)
