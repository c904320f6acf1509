"""A 0 in a sum of several goes."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "zero_summand_elimination"
HEAD = "main (float[N,4] x, float[N,4] y) => (float[N,4] z) <float o = {0}>"


@pytest.mark.parametrize("inner", ["Add (x, o)", "Add (o, x)"])
@pytest.mark.parametrize("outer", ["Add (a, y)", "Add (y, a)"])
def test_goes(inner: str, outer: str) -> None:
    check_rewrites(
        PASS, f"{HEAD} {{ a = {inner} z = {outer} }}", f"z = {outer.replace('(a', '(x').replace(' a)', ' x)')}"
    )


def test_a_row_of_zeros() -> None:
    text = f"{HEAD} {{ a = Add (x, o) z = Add (a, y) }}".replace("float o = {0}", "float[4] o = {0, 0, -0.0, 0}")
    check_rewrites(PASS, text, ops={"Add": 1})


KEPT = {
    "it is not 0": f"{HEAD} {{ a = Add (x, o) z = Add (a, y) }}".replace("{0}", "{1}"),
    "no operand comes from Add": f"{HEAD} {{ a = Sub (x, o) z = Add (a, y) }}",
    "used elsewhere": f"{HEAD} {{ a = Add (x, o) z = Add (a, y) }}".replace("z)", "z, float[N,4] a)"),
    "would enlarge the sum": f"{HEAD} {{ a = Add (x, o) z = Add (a, y) }}".replace("float[N,4] x", "float[4] x").replace("float o = {0}", "float[1,4] o = {0, 0, 0, 0}"),  # noqa: E501
    "integers": f"{HEAD} {{ a = Add (x, o) z = Add (a, y) }}".replace("float", "int64"),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)
