"""What nobody takes from control flow goes; what a condition or an effect needs stays."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "control_flow_output_elimination"


def test_results_of_an_if() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, bool c) => (float[2] y) {
            p, q, r = If (c) <
                then_branch = t () => (float[2] a, float[2] b, float[2] d) { a = Abs (x) b = Neg (x) d = Exp (a) },
                else_branch = e () => (float[2] f, float[2] g, float[2] h) { f = Sin (x) g = Cos (x) h = Tan (x) }
            >
            y = Relu (q)
        }""",
        after="""q = If (c) <
                then_branch = t () => (float[2] b) { b = Neg (x) },
                else_branch = e () => (float[2] g) { g = Cos (x) }
            >
            y = Relu (q)""",
    )


def test_a_result_that_a_branch_gives_twice() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, bool c) => (float[2] q) {
            p, q = If (c) <
                then_branch = t () => (float[2] a, float[2] a) { a = Abs (x) },
                else_branch = e () => (float[2] f, float[2] g) { f = Sin (x) g = Cos (f) }
            >
        }""",
        ops={"If": 1, "Abs": 1, "Sin": 1, "Cos": 1},
        numbers=False,  # ONNX Runtime leaves a result that a branch names twice unwritten
    )


LOOP = """main (float[2] x, int64 n) => (float[2] y) {{
    a, b, c, s, t = Loop (n, , x, x, x) <
        body = body (int64 i, bool go, float[2] p, float[2] q, float[2] r)
            => (bool on, float[2] p1, float[2] q1, float[2] r1, float[2] s1, float[2] t1) {{
            on = Identity (go)
            p1 = Abs (p)
            q1 = Add (q, {other})
            r1 = Exp (q)
            s1 = Neg (r)
            t1 = Sin (p)
        }}
    >
    y = Relu ({used})
}}"""


@pytest.mark.parametrize(
    ("used", "other", "ops"),
    [
        ("a", "q", {"Abs": 1, "Add": 0, "Exp": 0, "Neg": 0, "Sin": 0}),
        ("b", "q", {"Abs": 0, "Add": 1, "Exp": 0, "Neg": 0, "Sin": 0}),
        ("b", "p", {"Abs": 1, "Add": 1, "Exp": 0, "Neg": 0, "Sin": 0}),
        ("c", "q", {"Abs": 0, "Add": 1, "Exp": 1, "Neg": 0, "Sin": 0}),
    ],
)
def test_states_and_scans_of_a_loop(used: str, other: str, ops: dict[str, int]) -> None:
    check_rewrites(PASS, before=LOOP.format(used=used, other=other), ops={**ops, "Loop": 1, "Identity": 1})


def test_a_scan_of_a_loop_that_is_used() -> None:
    model = check_rewrites(
        PASS,
        before="""main (float[2] x, int64 n) => (float[N,2] s) {
            a, s = Loop (n, , x) <
                body = body (int64 i, bool go, float[2] p) => (bool on, float[2] p1, float[2] s1) {
                    on = Identity (go) p1 = Abs (p) s1 = Exp (x) }
            >
        }""",
        ops={"Loop": 1, "Abs": 0, "Exp": 1},
    )
    (loop,) = model.graph
    assert (len(loop.inputs), len(loop.outputs)) == (2, 1)


def test_a_state_that_the_condition_needs_stays() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, float k) => (float[2] y) {
            one = Constant <value = float {1}> ()
            ten = Constant <value = float {10}> ()
            zero = Constant <value = float {0}> ()
            yes = Constant <value = bool {1}> ()
            a, b, c = Loop (, yes, x, k, k) <
                body = body (int64 i, bool go, float[2] p, float q, float r)
                    => (bool on, float[2] p1, float q1, float r1) {
                    p1 = Sin (p)
                    q1 = Add (q, one)
                    on = Less (q1, ten)
                    r1 = Exp (r)
                }
            >
            y = Relu (a)
        }""",
        ops={"Loop": 1, "Sin": 1, "Add": 1, "Less": 1, "Exp": 0},
    )


def test_a_state_that_a_graph_below_needs_stays() -> None:
    check_keeps(
        PASS,
        """main (float[2] x, int64 n, bool k) => (float[2] y) {
            y, b = Loop (n, , x, x) <
                body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {
                    on = Identity (go)
                    q1 = Abs (q)
                    p1 = If (k) <
                        then_branch = t () => (float[2] u) { u = Add (p, q) },
                        else_branch = e () => (float[2] v) { v = Neg (p) }
                    >
                }
            >
        }""",
    )


def test_a_state_that_an_effect_needs_stays() -> None:
    check_keeps(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "impure" : 1]> main (float[2] x, int64 n) => (float[2] y) {
            y, b = Loop (n, , x, x) <
                body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {
                    on = Identity (go)
                    p1 = Abs (p)
                    q1 = Neg (q)
                    nothing = impure.Print (q)
                }
            >
        }""",
    )


def test_parts_of_a_scan() -> None:
    model = check_rewrites(
        PASS,
        before="""main (float[2] x, float[3,2] s, float[2,3] t, float[3,4] u) => (float[2] y, float[2,3] z) {
            a, b, y0, c, z = Scan <num_scan_inputs = 3, scan_input_axes = [0, 1, 0], scan_input_directions = [0, 1, 0],
                scan_output_axes = [0, 1], scan_output_directions = [0, 1],
                body = body (float[2] p, float[2] q, float[2] r, float[2] s1, float[2] t1, float[4] u1)
                    => (float[2] p1, float[2] q1, float[2] r1, float[4] c1, float[2] z1) {
                    p1 = Add (p, t1)
                    q1 = Add (q, s1)
                    r1 = Add (r, p)
                    c1 = Abs (u1)
                    z1 = Neg (t1)
                }
            > (x, x, x, s, t, u)
            y = Relu (y0)
        }""",
        ops={"Scan": 1, "Add": 2, "Abs": 0, "Neg": 1},
    )
    scan = model.graph[0]
    assert scan.attributes["num_scan_inputs"].value == 1
    assert list(scan.attributes["scan_input_axes"].value) == [1]
    assert list(scan.attributes["scan_input_directions"].value) == [1]
    assert list(scan.attributes["scan_output_axes"].value) == [1]
    assert list(scan.attributes["scan_output_directions"].value) == [1]


def test_one_scanned_input_says_how_often() -> None:
    model = check_rewrites(
        PASS,
        before="""main (float[2] x, float[N,2] s, float[N,2] t) => (float[2] y) {
            y, z = Scan <num_scan_inputs = 2,
                body = body (float[2] p, float[2] s1, float[2] t1) => (float[2] p1, float[2] z1) {
                    p1 = Sin (p) z1 = Add (s1, t1) }
            > (x, s, t)
        }""",
        ops={"Scan": 1, "Sin": 1, "Add": 0},
    )
    assert [value.name for value in model.graph[0].inputs if value] == ["x", "s"]
    assert "scan_output_axes" not in model.graph[0].attributes


def test_in_a_function() -> None:
    check_rewrites(
        PASS,
        before="""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[2] x, int64 n) => (float[2] y) { y = f.F (x, n) }
            <domain: "f", opset_import: ["" : 17]>
            F (x, n) => (a) {
                a, b = Loop (n, , x, x) <
                    body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {
                        on = Identity (go) p1 = Sin (p) q1 = Abs (q) }
                >
            }""",
        ops={"Loop": 1, "Sin": 1, "Abs": 0},
    )


def test_nothing_is_unused() -> None:
    check_keeps(
        PASS,
        """main (float[2] x, bool c) => (float[2] y, float[2] z) {
            y, z = If (c) <
                then_branch = t () => (float[2] a, float[2] b) { a = Abs (x) b = Neg (x) },
                else_branch = e () => (float[2] f, float[2] g) { f = Sin (x) g = Cos (x) }
            >
        }""",
    )


def test_before_opset_9() -> None:
    check_keeps(
        PASS,
        """main (float[1,2] x, float[1,N,2] s) => (float[1,2] y) {
            y, z = Scan <num_scan_inputs = 1, body = body (float[2] p, float[2] s1) => (float[2] p1, float[2] z1) {
                p1 = Sin (p) z1 = Abs (s1) }> (, x, s)
        }""",
        "before opset 9",
        opset=8,
    )
