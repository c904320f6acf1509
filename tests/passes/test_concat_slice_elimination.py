"""What has been joined and is taken apart again into the same parts was there before."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "concat_slice_elimination"
LONG = 2**63 - 1
TEXT = """main (float[N,2] a, float[N,3] b, float[N,4] c) => (float[A,B] y)
    <int64[1] s = {{{s}}}, int64[1] e = {{{e}}}, int64[1] x = {{{axis}}}> {{
    k = Concat <axis = 1> (a, b, c) t = Slice (k, s, e, x) y = Neg (t) }}"""


@pytest.mark.parametrize(
    ("start", "end", "axis", "part"),
    [(0, 2, 1, "a"), (2, 5, -1, "b"), (5, LONG, 1, "c"), (-4, 100, 1, "c"), (-7, -4, 1, "b"), (-9, 2, 1, "a")],
)
def test_a_slice(start: int, end: int, axis: int, part: str) -> None:
    check_rewrites(PASS, TEXT.format(s=start, e=end, axis=axis), f"y = Neg ({part})")


test_keeps = keeps(
    PASS,
    [
        ("takes no operand whole", TEXT.format(s=0, e=3, axis=1)),
        ("takes no operand whole", TEXT.format(s=0, e=5, axis=1)),
        ("takes no operand whole", TEXT.format(s=3, e=5, axis=1)),
        ("along another axis", TEXT.format(s=0, e=2, axis=0)),
        ("steps are not 1", TEXT.format(s=0, e=2, axis=1).replace("e, x)", "e, x, p)").replace("int64[1] s", "int64[1] p = {2}, int64[1] s")),  # noqa: E501
        ("several axes", TEXT.format(s="0, 0", e="2, 1", axis="1, 0").replace("[1] ", "[2] ")),
    ],
)  # fmt: skip


def test_by_symbols() -> None:
    check_rewrites(
        PASS,
        f"""main (float[P] past, float[S] x) => (float[P] y, float[S] z) <int64[1] zero = {{0}}, int64[1] long = {{{LONG}}}> {{
            p = Shape (past) k = Concat <axis = 0> (past, x) a = Slice (k, zero, p) y = Neg (a)
            b = Slice (k, p, long) z = Neg (b) }}""",  # noqa: E501
        "y = Neg (past) z = Neg (x)",
    )


def test_the_last_one_after_any_number() -> None:
    text = f"""main (float[P] past, float[1] x) => (float[1] y) <int64[1] last = {{-1}}, int64[1] long = {{{LONG}}}> {{
        k = Concat <axis = 0> (past, x) a = Slice (k, last, long) y = Neg (a) }}"""
    check_rewrites(PASS, text, "main (float[P] past, float[1] x) => (float[1] y) { y = Neg (x) }")
    check_keeps(PASS, text.replace("{-1}", "{-2}").replace("[1] y", "[2] y"), "takes no operand whole")


@pytest.mark.parametrize("opset", [11, 17])
def test_a_split(opset: int) -> None:
    sizes = ("", ", split = [2, 3]") if opset < 13 else (", s", "")
    constants = "" if opset < 13 else "<int64[2] s = {2, 3}>"
    text = f"""main (float[N,2] a, float[N,3] b) => (float[N,2] y, float[N,3] z) {constants} {{
        k = Concat <axis = 1> (a, b) p, q = Split <axis = -1{sizes[1]}> (k{sizes[0]}) y = Neg (p) z = Abs (q) }}"""
    check_rewrites(PASS, text, ops={"Concat": 0, "Split": 0}, opset=opset)
    check_keeps(
        PASS,
        text.replace("axis = 1", "axis = 0")
        .replace("N,3] b", "M,2] b")
        .replace("(float[N,2] y, float[N,3] z)", "(float[A,B] y, float[C,D] z)"),
        "another axis",
        opset=opset,
    )
    other = text.replace("2, 3", "3, 2").replace("(float[N,2] y, float[N,3] z)", "(float[N,3] y, float[N,2] z)")
    check_keeps(PASS, other, "other parts", opset=opset)


def test_keeps_a_split_of_unknown_sizes() -> None:
    text = """main (float[2] a, float[2] b, int64[2] s) => (float[A] y, float[B] z) {
        k = Concat <axis = 0> (a, b) p, q = Split (k, s) y = Neg (p) z = Abs (q) }"""
    check_keeps(PASS, text, "sizes of the parts are not known")


def test_in_a_branch_and_in_a_function() -> None:
    check_rewrites(
        PASS,
        """main (bool c, float[2] a, float[3] b) => (float[2] y) <int64[1] s = {0}, int64[1] e = {2}> {
            k = Concat <axis = 0> (a, b)
            y = If (c) <then_branch = p () => (float[2] o) { t = Slice (k, s, e) o = Neg (t) },
                        else_branch = q () => (float[2] r) { r = Abs (a) }> }""",
        ops={"Concat": 0, "Slice": 0},
    )
    check_rewrites(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        main (float[2] a, float[3] b) => (float[2] y) { y = own.f (a, b) }
        <domain: "own", opset_import: ["" : 17]> f (a, b) => (y) {
            s = Constant <value_ints = [0]> () e = Constant <value_ints = [2]> ()
            k = Concat <axis = 0> (a, b) t = Slice (k, s, e) y = Neg (t) }""",
        ops={"Concat": 0, "Slice": 0},
    )
