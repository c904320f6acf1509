"""A layer that is unrolled over the steps of a sequence is one product for all steps."""

from __future__ import annotations

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import parse

WEIGHTS = "float[4,2] w = {1, -2, 3, 0.5, -1, 4, 0.25, 2}, float[2] b = {0.5, -1}"
HEAD = "main (float[N,3,4] x) => (float[N,3,2] y)"


def test_a_sequence_that_is_sliced_step_by_step() -> None:
    steps = " ".join(
        f"p{i} = Slice (x, k{i}, k{i + 1}, axis) r{i} = Squeeze (p{i}, axis) a{i} = MatMul (r{i}, w)"
        f" m{i} = Add (a{i}, b) u{i} = Unsqueeze (m{i}, axis)"
        for i in range(3)
    )
    places = ", ".join(f"int64[1] k{i} = {{{i}}}" for i in range(4))
    model = parse(f"""{HEAD} <int64[1] axis = {{1}}, {places}, {WEIGHTS}> {{
        {steps} y = Concat <axis = 1> (u0, u1, u2) }}""")
    result = optimize(model, level=1)
    assert figures(result.model).ops == {"MatMul": 1, "Add": 1}
    assert result.verified
    assert figures(optimize(result.model, level=1).model).ops == figures(result.model).ops
