"""Equal branches are one; a result that both give alike does not need the If."""

import pytest

from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "if_merging"


def branches(then: str, other: str, more: str = "") -> str:
    return f"""main (float[2] x, float[2] z, bool c) => (float[2] y) {more} {{
        a = If (c) <
            then_branch = t () => (float[2] u) {{ {then} }},
            else_branch = e () => (float[2] v) {{ {other} }}
        >
        y = Relu (a)
    }}"""


def test_equal_branches() -> None:
    check_rewrites(
        PASS,
        before=branches("i = Add (x, z) u = Exp (i)", "k = Add (z, x) v = Exp (k)"),
        after="i = Add (x, z) a = Exp (i) y = Relu (a)",
    )


def with_initializers(first: str, second: str) -> str:
    text = branches("u = Add (x, w)", "v = Add (x, w2)")
    text = text.replace("{ u =", f"<float[2] w = {{{first}}}> {{ u =")
    return text.replace("{ v =", f"<float[2] w2 = {{{second}}}> {{ v =")


def test_equal_branches_with_initializers() -> None:
    check_rewrites(PASS, before=with_initializers("1, 2", "1, 2"), ops={"If": 0, "Add": 1})


@pytest.mark.parametrize("bits", ["-0.0", "1"])
def test_initializers_that_differ(bits: str) -> None:
    check_keeps(PASS, with_initializers("0, 0", f"0, {bits}"))


def test_random_branches_that_are_equal_draw_once_as_before() -> None:
    model = parse(branches("u = RandomNormalLike (x)", "v = RandomNormalLike (x)"))
    changed, _ = run(PASS, model)
    assert changed
    assert [node.op_type for node in model.graph] == ["RandomNormalLike", "Relu"]


def test_a_result_that_both_hand_on() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, bool c) => (float[2] y, float[2] w) {
            n = Neg (x)
            a, b = If (c) <
                then_branch = t () => (float[2] u, float[2] u2) { i = Identity (n) u = Identity (i) u2 = Exp (n) },
                else_branch = e () => (float[2] v, float[2] v2) { v = Identity (n) v2 = Abs (n) }
            >
            y = Relu (a)
            w = Relu (b)
        }""",
        after="""n = Neg (x)
            a, b = If (c) <
                then_branch = t () => (float[2] u, float[2] u2) { i = Identity (n) u = Identity (i) u2 = Exp (n) },
                else_branch = e () => (float[2] v, float[2] v2) { v = Identity (n) v2 = Abs (n) }
            >
            y = Relu (n)
            w = Relu (b)""",
    )


def test_results_that_are_graph_outputs() -> None:
    model = check_rewrites(
        PASS,
        before="""main (float[2] x, bool c) => (float[2] a, float[2] b, float[2] d) {
            a, b, d = If (c) <
                then_branch = t () => (float[2] u, float[2] u2, float[2] u3) <float[2] u2 = {1, 2}> {
                    u = Identity (x) u3 = Exp (x) },
                else_branch = e () => (float[2] v, float[2] v2, float[2] v3) <float[2] v2 = {1, 2}> {
                    v = Identity (x) v3 = Abs (x) }
            >
        }""",
        ops={"If": 1},
        numbers=False,  # ONNX Runtime wants what a branch returns to be computed in it
    )
    assert [value.name for value in model.graph.outputs] == ["a", "b", "d"]


def test_in_a_loop_and_in_a_function() -> None:
    text = """{0} = If (c) <
        then_branch = t{0} () => (float[2] u{0}) {{ u{0} = Exp ({1}) }},
        else_branch = e{0} () => (float[2] v{0}) {{ v{0} = Exp ({1}) }}>"""
    check_rewrites(
        PASS,
        before=f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[2] x, int64 n, bool c) => (float[2] y, float[2] z) {{
                y = f.F (x, c)
                z = Loop (n, , x) <body = b (int64 i, bool go, float[2] p) => (bool on, float[2] p1) {{
                    on = Identity (go) {text.format("p1", "p")} }}>
            }}
            <domain: "f", opset_import: ["" : 17]>
            F (x, c) => (r) {{ {text.format("r", "x")} }}""",
        ops={"If": 0, "Exp": 2},
    )


def test_branches_that_differ() -> None:
    check_keeps(PASS, branches("u = Exp (x)", "v = Exp (z)"))
    check_keeps(PASS, branches("u = Elu <alpha = 0.0> (x)", "v = Elu <alpha = -0.0> (x)"))
    check_keeps(PASS, branches("u = Identity (x)", "v = Identity (z)"))
