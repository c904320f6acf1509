"""A layer that is unrolled over the steps of a sequence is one product for all steps."""

from __future__ import annotations

import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.tables import keeps

PASS = "unrolled_product_merging"
WEIGHTS = "float[4,2] w = {1, -2, 3, 0.5, -1, 4, 0.25, 2}, float[2] b = {0.5, -1}"
GEMM = "m{i} = Gemm (r{i}, w, b)"
HEAD = "main (float[N,3,4] x) => (float[N,3,2] y)"
SAME = "main (float[N,3,4] x) => (float[N,3,4] y)"
SQUARE = "main (float[4,3,4] x) => (float[4,3,2] y)"


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


def merged(product: str, *, head: str = HEAD, more: str = "") -> str:
    return f"{head} <{WEIGHTS}{more}> {{ {product} }}"


def test_steps_in_the_middle() -> None:
    check_rewrites(PASS, unrolled(), merged("m = MatMul (x, w) y = Add (m, b)"))


@pytest.mark.parametrize(
    "product",
    ["a{i} = MatMul (r{i}, w) m{i} = Add (a{i}, b)", "a{i} = MatMul (r{i}, w) m{i} = Add (b, a{i})"],
)
def test_a_sum_behind_a_product(product: str) -> None:
    check_rewrites(PASS, unrolled(product), merged("m = MatMul (x, w) y = Add (m, b)"))


def test_no_bias() -> None:
    text = unrolled("m{i} = MatMul (r{i}, w)").replace(", float[2] b = {0.5, -1}", "")
    check_rewrites(PASS, text, ops={"MatMul": 1})
    check_rewrites(PASS, unrolled("m{i} = Gemm (r{i}, w)").replace(", float[2] b = {0.5, -1}", ""), ops={"MatMul": 1})


def test_a_matrix_that_is_transposed_and_no_constant() -> None:
    head = "main (float[N,3,4] x, float[2,4] v) => (float[N,3,2] y)"
    text = unrolled("m{i} = Gemm <transB = 1> (r{i}, v, b)", head=head)
    text = text.replace(f"{WEIGHTS}", "float[2] b = {0.5, -1}")
    check_rewrites(PASS, text, ops={"Transpose": 1, "MatMul": 1, "Add": 1})


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


def test_reshapes() -> None:
    text = """main (float[2,3,4] x) => (float[2,3,2] y) <float[4,2] w = {1, -2, 3, 0.5, -1, 4, 0.25, 2},
            int64[2] in = {2, 4}, int64[3] out = {2, 1, 2}, int64[3] ones = {1, 1, 1}> {
        p0, p1, p2 = Split <axis = 1> (x, ones)
        r0 = Reshape (p0, in) r1 = Reshape (p1, in) r2 = Reshape (p2, in)
        m0 = MatMul (r0, w) m1 = MatMul (r1, w) m2 = MatMul (r2, w)
        u0 = Reshape (m0, out) u1 = Reshape (m1, out) u2 = Reshape (m2, out)
        y = Concat <axis = -2> (u0, u1, u2) }"""
    check_rewrites(PASS, text, ops={"MatMul": 1})


KEPT = {
    "not all the steps, in their order": unrolled(order=(0, 2, 1)),
    "what is added is no row": unrolled().replace("float[2] b = {0.5, -1}", "float[1] b = {0.5}"),
    "the product is scaled": unrolled("m{i} = Gemm <alpha = 2.0> (r{i}, w, b)"),
    "the rows are transposed": unrolled("m{i} = Gemm <transA = 1> (r{i}, w, b)", head=SQUARE),
    "its operands are no products of steps": unrolled("m{i} = Relu (r{i})", head=SAME),
    "nothing is multiplied": unrolled("m{i} = Add (r{i}, k)", head=SAME,
                                      more=", float[4] k = {1, 2, 3, 4}"),
    "it gives no sequence of rows": """main (float[2,4] x) => (float[4,4] y) { y = Concat <axis = 0> (x, x) }""",
    "the products are not the same": unrolled().replace("Gemm (r1, w, b)", "Gemm (r1, v, b)").replace(
        ", float[2] b", ", float[4,2] v = {1, 1, 1, 1, 1, 1, 1, 1}, float[2] b"),
    "its operands are no single steps": """main (float[1,4,4] x) => (float[2,2,2] y)
            <float[4,2] w = {1, -2, 3, 0.5, -1, 4, 0.25, 2},
            int64[2] in = {2, 4}, int64[3] out = {2, 1, 2}, int64[2] twos = {2, 2}> {
        p0, p1 = Split <axis = 1> (x, twos) r0 = Reshape (p0, in) r1 = Reshape (p1, in)
        m0 = MatMul (r0, w) m1 = MatMul (r1, w) u0 = Reshape (m0, out) u1 = Reshape (m1, out)
        y = Concat <axis = 1> (u0, u1) }""",
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_some_of_the_steps_stay() -> None:
    text = unrolled().replace("Concat <axis = 1> (u0, u1, u2)", "Concat <axis = 1> (u0, u1)")
    check_keeps(PASS, text.replace("float[N,3,2] y", "float[N,2,2] y"), "not all the steps, in their order")


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
