"""A state that no iteration changes is read from outside; one that only looks alike is not."""

import pytest

from ortopt import optimize
from ortopt.testing import check_keeps, check_rewrites, parse

PASS = "loop_carried_elimination"


def test_handed_on_as_it_came() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, float[2] k, int64 n) => (float[2] y, float[2] z) {
            y, c = Loop (n, , x, k) <
                body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {
                    on = Identity (go) p1 = Add (p, q) q0 = Identity (q) q1 = Identity (q0) }
            >
            z = Relu (c)
        }""",
        after="""y, c = Loop (n, , x, k) <
                body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {
                    on = Identity (go) p1 = Add (p, k) q0 = Identity (k) q1 = Identity (q0) }
            >
            z = Relu (k)""",
    )


def test_the_initial_value_read_from_outside_and_handed_on() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, float[2] k, int64 n) => (float[2] y, float[2] c) {
            y, c = Loop (n, , x, k) <
                body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {
                    on = Identity (go) p1 = Add (p, q) q1 = Identity (k) }
            >
        }""",
        ops={"Loop": 1, "Identity": 3},
    )


def test_a_scan() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, float[2] k, float[N,2] s) => (float[2] y) {
            y, c = Scan <num_scan_inputs = 1,
                body = body (float[2] p, float[2] q, float[2] s1) => (float[2] p1, float[2] q1) {
                    u = Mul (p, q) p1 = Add (u, s1) q1 = Identity (q) }
            > (x, k, s)
        }""",
        after="""y, c = Scan <num_scan_inputs = 1,
                body = body (float[2] p, float[2] q, float[2] s1) => (float[2] p1, float[2] q1) {
                    u = Mul (p, k) p1 = Add (u, s1) q1 = Identity (k) }
            > (x, k, s)""",
    )


def test_in_a_loop_in_a_branch_and_in_a_function() -> None:
    loop = """{0} = Loop (n, , x, k) <
        body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {{
            on = Identity (go)
            p1 = If (c) <
                then_branch = t () => (float[2] u) {{ u = Add (p, q) }},
                else_branch = e () => (float[2] v) {{ v = Neg (q) }}
            >
            q1 = Identity (q)
        }}>"""
    before = f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[2] x, float[2] k, int64 n, bool c) => (float[2] y, float[2] z) {{
            y = f.F (x, k, n, c)
            z = If (c) <
                then_branch = tt () => (float[2] r) {{ {loop.format("r, r2")} }},
                else_branch = ee () => (float[2] o) {{ o = Abs (x) }}
            >
        }}
        <domain: "f", opset_import: ["" : 17]>
        F (x, k, n, c) => (r) {{ {loop.format("r, r2")} }}"""
    check_rewrites(PASS, before=before)
    model = optimize(parse(before), level=1, target="onnx", verify=False).model
    loops = [
        node for graph in (model.graph, model.graph[-1].attributes["then_branch"].value) for node in graph
        if node.op_type == "Loop"
    ]  # fmt: skip
    assert [len(node.inputs) for node in loops] == [3] * len(loops)


def test_a_state_that_changes() -> None:
    check_keeps(
        PASS,
        """main (float[2] x, float[2] k, int64 n) => (float[2] y) {
            y, c = Loop (n, , x, k) <
                body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {
                    on = Identity (go) p1 = Identity (q) q1 = Identity (p) }
            >
        }""",
    )


def test_another_outer_value_handed_on() -> None:
    """After the first iteration it is k, before it x."""
    check_keeps(
        PASS,
        """main (float[2] x, float[2] k, int64 n) => (float[2] y, float[2] c) {
            y, c = Loop (n, , x, x) <
                body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {
                    on = Identity (go) p1 = Add (p, q) q1 = Identity (k) }
            >
        }""",
    )


def test_a_body_that_declares_another_shape_stays() -> None:
    check_keeps(
        PASS,
        """main (float[2] x, float[R,2] k, int64 n) => (y) { y, z = Loop (n, , x, k) <body = body
            (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] s, float[2] t) {
                on = Identity (go) s = Add (p, q) t = Identity (q) }> }""",
    )


def weighted(use: str = "MatMul (p, w)", outer: str = "k") -> str:
    constant = "<float[2,2] k = {1, 2, 3, 4}>" if outer == "k" else ""
    return f"""main (float[1,2] x, float[2,2] given, int64 n) => (float[?,2] y) {constant} {{
        y, c = Loop (n, , x, {outer}) <
            body = body (int64 i, bool go, float[?,2] p, float[2,2] w) => (bool on, float[?,2] p1, float[2,2] w1) {{
                on = Identity (go) q = {use} p1 = Tanh (q) w1 = Identity (w) }} > }}"""


def test_a_small_weight_stays_a_state() -> None:
    """ONNX Runtime packs weights that are constants, which is slower where products have few rows."""
    for use in ("MatMul (p, w)", "Gemm (p, w)"):
        check_keeps(PASS, weighted(use), "a small weight is faster as a state")
        check_rewrites(PASS, weighted(use), ops={"Loop": 1}, target="onnx")


@pytest.mark.parametrize("text", [weighted("Add (p, w)"), weighted("MatMul (w, w)", "given"), weighted(outer="given")])
def test_what_is_no_constant_weight_of_a_product_goes(text: str) -> None:
    check_rewrites(PASS, text, ops={"Loop": 1})


def test_a_large_weight_goes() -> None:
    entries = ", ".join(["0.001"] * 257 * 256)
    text = f"""main (float[1,257] x, int64 n) => (float[1,256] y) <float[257,256] k = {{{entries}}}, float[1,256] zero = {{{", ".join(["0"] * 256)}}}> {{
        y, c = Loop (n, , zero, k) <
            body = body (int64 i, bool go, float[1,256] p, float[257,256] w)
                => (bool on, float[1,256] p1, float[257,256] w1) {{
                on = Identity (go) q = MatMul (x, w) p1 = Add (p, q) w1 = Identity (w) }} > }}"""  # noqa: E501
    check_rewrites(PASS, text, ops={"Loop": 1})
