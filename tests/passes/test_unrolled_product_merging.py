"""A layer that is unrolled over the steps of a sequence is one product for all steps."""

from __future__ import annotations

import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import check_keeps, check_rewrites, parse

PASS = "unrolled_product_merging"
WEIGHTS = "float[4,2] w = {1, -2, 3, 0.5, -1, 4, 0.25, 2}, float[2] b = {0.5, -1}"
GEMM = "m{i} = Gemm (r{i}, w, b)"
HEAD = "main (float[N,3,4] x) => (float[N,3,2] y)"


def unrolled(
    product: str = GEMM,
    *,
    head: str = HEAD,
    of: int = 1,
    to: int = 1,
    more: str = "",
    order: tuple[int, ...] = (0, 1, 2),
) -> str:
    """Three steps along an axis, each multiplied by itself and joined with the others."""
    steps = " ".join(f"r{i} = Squeeze (p{i}, of) {product.format(i=i)} u{i} = Unsqueeze (m{i}, to)" for i in range(3))
    constants = f"int64[1] of = {{{of}}}, int64[1] to = {{{to}}}, int64[3] ones = {{1, 1, 1}}, {WEIGHTS}{more}"
    joined = ", ".join(f"u{i}" for i in order)
    return f"""{head} <{constants}> {{
        p0, p1, p2 = Split <axis = {of}> (x, ones) {steps} y = Concat <axis = {to}> ({joined}) }}"""


LAYOUTS = {
    (0, 0): ("[3,N,4]", "[3,N,2]", 0),
    (0, 1): ("[3,N,4]", "[N,3,2]", 1),
    (0, 2): ("[3,N,4]", "[N,2,3]", 2),
    (1, 0): ("[N,3,4]", "[3,N,2]", 1),
    (1, 2): ("[N,3,4]", "[N,2,3]", 1),
    (2, 0): ("[N,4,3]", "[3,N,2]", 1),
    (2, 1): ("[N,4,3]", "[N,3,2]", 1),
    (2, 2): ("[N,4,3]", "[N,2,3]", 2),
}


@pytest.mark.parametrize(("of", "to"), LAYOUTS)
def test_steps_elsewhere(of: int, to: int) -> None:
    given, wanted, transposes = LAYOUTS[of, to]
    head = f"main (float{given} x) => (float{wanted} y)"
    ops = {"MatMul": 1, "Add": 1, **({"Transpose": transposes} if transposes else {})}
    check_rewrites(PASS, unrolled(head=head, of=of, to=to), ops=ops)


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


@pytest.mark.parametrize("more", ["float[N,1,4] p1", "float[N,4] r0", "float[N,2] m2", "float[N,1,2] u1"])
def test_keeps_what_is_a_result_or_is_read_elsewhere(more: str) -> None:
    head, name = HEAD.replace(" y)", f" y, {more})"), more.rsplit(maxsplit=1)[-1]
    check_keeps(PASS, unrolled(head=head), "is used elsewhere")
    head = HEAD.replace(" y)", f" y, {more.split(maxsplit=1)[0]} z)")
    check_keeps(PASS, unrolled(head=head).replace("y = Concat", f"z = Neg ({name}) y = Concat"), "is used elsewhere")
