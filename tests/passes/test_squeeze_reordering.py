"""A Squeeze behind a convolution goes below elementwise ops, until it meets the Unsqueeze of the next one."""

from __future__ import annotations

import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import check_rewrites, parse

PASS = "squeeze_reordering"


@pytest.mark.parametrize("bias", ["float[1,2,1] v = {1, 2}", "float[2,1] v = {1, 2}", "float v = {3}"])
def test_a_bias_and_an_activation_go_to_the_convolution(bias: str) -> None:
    weight = ",".join(["0.5"] * 12)
    text = f"""main (float[N,2,1,L] x) => (float[N,2,L] y)
        <int64[1] two = {{2}}, float[2,2,1,3] w = {{{weight}}}, {bias}> {{
            c = Conv <pads = [0, 1, 0, 1]> (x, w) s = Squeeze (c, two) a = Add (v, s) y = Relu (a) }}"""
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
