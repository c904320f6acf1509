"""A value to which its own product is added is multiplied once, by the smaller operand plus 1."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "scaled_residual_merging"
CONSTANTS = "float[1,1,1,3] c = {2, -1, 0}, float[3] b = {1, 2, 3}"


def model(nodes: str, d: str = "float[N,1,1,3]", constants: str = CONSTANTS, more: str = "") -> str:
    return f"main (float[N,H,4,3] x, {d} d{more}) => (float[N,H,4,3] y) <{constants}> {{ {nodes} }}"


FULL = "p = Mul (x, d) q = Mul (c, p) s = Add (q, b) y = Add (s, x)"
MERGED = {
    FULL: "e = Mul (d, c) f = Add (e, one) g = Mul (x, f) y = Add (g, b)",
    "p = Mul (d, x) q = Mul (p, c) s = Add (b, q) y = Add (x, s)": "e = Mul (d, c) f = Add (e, one) g = Mul (x, f) y = Add (g, b)",  # noqa: E501
    "p = Mul (x, d) s = Add (p, b) y = Add (x, s)": "f = Add (d, one) g = Mul (x, f) y = Add (g, b)",
    "p = Mul (x, d) s = Mul (p, c) y = Add (x, s)": "e = Mul (d, c) f = Add (e, one) y = Mul (x, f)",
    "p = Mul (x, d) y = Add (x, p)": "f = Add (d, one) y = Mul (x, f)",
}


@pytest.mark.parametrize("before", MERGED)
def test_merges(before: str) -> None:
    known = {"c": "float[1,1,1,3] c = {2, -1, 0}", "b": "float[3] b = {1, 2, 3}"}
    constants = ", ".join(text for name, text in known.items() if f" {name})" in before or f"({name}," in before)
    text = model(before, constants=constants) if constants else model(before).replace(f" <{CONSTANTS}>", "")
    after = ", ".join(filter(None, [constants, "float one = {1}"]))
    check_rewrites(PASS, text, model(MERGED[before], constants=after))


@pytest.mark.parametrize("d", ["float", "float[3]", "float[N,1,4,3]", "float[1,H,1,1]"])
def test_other_factors(d: str) -> None:
    check_rewrites(PASS, model(FULL, d), ops={"Mul": 2, "Add": 2})


KEPT = {
    "may have as many elements": model(FULL, "float[N,H,4,3]"),
    "may have as many elements ": model(FULL, "float[1,H,4,1]", more="").replace("[N,H,4,3]", "[1,H,4,3]"),
    "would enlarge it": model(FULL, "float[2,N,1,1,3]").replace("(float[N,H,4,3] y)", "(float[2,N,H,4,3] y)"),
    "it is no product of what it is added to": model(FULL.replace("(s, x)", "(s, z)"), more=", float[N,H,4,3] z"),
    "q's result is used elsewhere": model(FULL).replace("y)", "y, float[N,H,4,3] q)", 1),
    "larger or smaller": model(FULL, constants=CONSTANTS.replace("2, -1, 0", "2, 1e38, 0")),
}


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    reason = because.strip().replace("q's result is", "is")
    check_keeps(PASS, KEPT[because], reason)


@pytest.mark.parametrize("more", ["p", "q", "s"])
def test_keeps_what_is_a_result_or_is_read_elsewhere(more: str) -> None:
    for nodes, name in ((FULL, more), (f"{FULL} z = Neg ({more})", "z")):
        check_keeps(PASS, model(nodes).replace("y)", f"y, float[N,H,4,3] {name})", 1), "is used elsewhere")
