"""A Squeeze behind a convolution goes below elementwise ops, until it meets the Unsqueeze of the next one."""

from __future__ import annotations

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import parse


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
