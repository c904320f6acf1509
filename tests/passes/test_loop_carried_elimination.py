"""A state that no iteration changes is read from outside; one that only looks alike is not."""

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
    model = optimize(parse(before), level=1, target="onnx").model
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
