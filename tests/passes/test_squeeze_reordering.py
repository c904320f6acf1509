"""A Squeeze behind a convolution goes below elementwise ops, until it meets the Unsqueeze of the next one."""

from __future__ import annotations

import re

import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import check_rewrites, parse

PASS = "squeeze_reordering"
WEIGHT = ",".join(["0.5"] * 12)
CONSTANTS = {
    "two": "int64[1] two = {2}",
    "one": "int64[1] one = {1}",
    "w": f"float[2,2,1,3] w = {{{WEIGHT}}}",
    "half": "float half = {0.5}",
}
CONV = "c = Conv <pads = [0, 1, 0, 1]> ({}, w)"
SQUEEZE = "s = Squeeze (c, two)"
END = "u = Unsqueeze (e, two) y = Conv <pads = [0, 1, 0, 1]> (u, w)"


def model(middle: str, constants: str = "", end: str = END, more: str = "", start: str = SQUEEZE) -> str:
    """A convolution of x, its result s without the axis, and the next one of e."""
    body = f"{CONV.format('x')} {start} {middle} {end}"
    used = [text for name, text in CONSTANTS.items() if re.search(rf"\b{name}\b", body)]
    return f"""main (float[N,2,1,L] x{more}) => (float[N,2,1,L] y) <{", ".join(used)}{constants}> {{ {body} }}"""


REWRITTEN = {
    "an activation": ("e = Relu (s)", "e = Relu (c)", ""),
    "an activation with attributes": ("e = LeakyRelu <alpha = 0.2> (s)", "e = LeakyRelu <alpha = 0.2> (c)", ""),
    "an activation of ONNX Runtime": (
        "e = com.microsoft.QuickGelu <alpha = 1.0> (s)", "e = com.microsoft.QuickGelu <alpha = 1.0> (c)", "",
    ),
    "a chain": ("a = Tanh (s) b = Sigmoid (s) e = Mul (a, b)", "a = Tanh (c) b = Sigmoid (c) e = Mul (a, b)", ""),
    "a number": ("e = Mul (s, half)", "e = Mul (c, half)", ""),
    "a number, first": ("e = Sub (half, s)", "e = Sub (half, c)", ""),
    "a number for each channel": (
        "e = Mul (s, v)", "e = Mul (c, v)", (", float[2,1] v = {1, 2}", ", float[2,1,1] v = {1, 2}"),
    ),
    "a number for each channel, of full rank": (
        "e = Add (v, s)", "e = Add (v, c)", (", float[1,2,1] v = {1, 2}", ", float[1,2,1,1] v = {1, 2}"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewrites(case: str) -> None:
    middle, after, constants = REWRITTEN[case]
    old, new = constants or ("", "")
    text = model(after, new, END.replace("(e, two)", "(t, two)"), start="").replace(
        after, f"{after} t = Squeeze (e, two)"
    )
    check_rewrites(PASS, model(middle, old), text)


ALONE = "main (float[N,2,1,L] x{more}) => (float[N,2,L] y) <{constants}> {{ {conv} {squeeze} {middle} }}"


def alone(middle: str, constants: str = "", more: str = "") -> str:
    """A convolution of x, its result s without the axis, and no other convolution."""
    fixed = f"{CONSTANTS['two']}, {CONSTANTS['w']}{constants}"
    return ALONE.format(more=more, constants=fixed, conv=CONV.format("x"), squeeze=SQUEEZE, middle=middle)


@pytest.mark.parametrize("bias", ["float[1,2,1] v = {1, 2}", "float[2,1] v = {1, 2}", "float v = {3}"])
def test_a_bias_and_an_activation_go_to_the_convolution(bias: str) -> None:
    text = alone("a = Add (v, s) y = Relu (a)", f", {bias}")
    check_rewrites(PASS, text, ops={"Conv": 1, "Add": 1, "Relu": 1, "Squeeze": 1})
    result = optimize(parse(text), level=3, verify=False)
    assert figures(result.model).ops == {"com.microsoft::FusedConv": 1, "Squeeze": 1}


def test_one_pair_is_left_of_a_chain() -> None:
    weight = ",".join(["0.01"] * (32 * 32 * 3))
    layers = " ".join(
        f"c{i} = Conv <pads = [1, 1]> ({'x' if not i else f'e{i - 1}'}, w) a{i} = Elu (c{i})"
        f" e{i} = Add (a{i}, {'x' if not i else f'e{i - 1}'})"
        for i in range(3)
    )
    model = parse(f"""main (float[1,32,200] x) => (float[1,32,200] y) <float[32,32,3] w = {{{weight}}}> {{
        {layers} y = Identity (e2) }}""")
    result = optimize(model, level=3)
    counts = figures(result.model).ops
    assert {op: counts.get(op, 0) for op in ("Unsqueeze", "Squeeze", "Conv")} == {
        "Unsqueeze": 1, "Squeeze": 1, "Conv": 3,
    }  # fmt: skip
    assert result.verified
