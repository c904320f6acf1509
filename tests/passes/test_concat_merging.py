"""Concats along one axis are one."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "concat_merging"


@pytest.mark.parametrize(("inner", "outer"), [(1, 1), (-1, 1), (1, -1)])
def test_goes(inner: int, outer: int) -> None:
    check_rewrites(
        PASS,
        f"""main (float[N,1] a, float[N,2] b, float[N,3] c) => (float[N,9] y) {{
            k = Concat <axis = {inner}> (a, b) l = Concat <axis = {inner}> (c, b) y = Concat <axis = {outer}> (k, a, l) }}""",  # noqa: E501
        f"y = Concat <axis = {outer}> (a, b, a, c, b)",
    )


def test_a_long_chain_stays_cheap() -> None:
    links = "".join(f"v{i + 1} = Concat <axis = 0> (v{i}, x) " for i in range(400))
    check_rewrites(
        PASS,
        f"main (float[1] x) => (float[401] y) {{ v0 = Concat <axis = 0> (x) {links} y = Identity (v400) }}",
        ops={"Concat": 2},
    )


TEXT = "main (float[N,2] a, float[N,2] b) => (float[A,B] y) { k = Concat <axis = 1> (a, b) BODY }"


@pytest.mark.parametrize(
    "body",
    [
        "y = Concat <axis = 0> (k, k)",
        "y = Concat <axis = 1> (k, k)",
        "y = Concat <axis = 0> (k)",
        "z = Neg (k) w = Concat <axis = 1> (k, z) y = Neg (w)",
    ],
)
def test_keeps(body: str) -> None:
    check_keeps(PASS, TEXT.replace("BODY", body), "no operand is a Concat along this axis for it alone")


def test_keeps_a_graph_output() -> None:
    text = TEXT.replace("y)", "y, float[A,C] k)").replace("BODY", "y = Concat <axis = 1> (k, a)")
    check_keeps(PASS, text, "for it alone")


def test_in_a_branch() -> None:
    text = """main (bool c, float[2] a) => (float[A] y) { OUTER
        y = If (c) <then_branch = p () => (o) { INNER o = Concat <axis = 0> (k, a) },
                    else_branch = q () => (r) { r = Neg (a) }> }"""
    joined = "k = Concat <axis = 0> (a, a)"
    check_rewrites(PASS, text.replace("OUTER", "").replace("INNER", joined), ops={"Concat": 1})
    check_keeps(PASS, text.replace("OUTER", joined).replace("INNER", ""), "for it alone")
