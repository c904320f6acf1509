"""What nobody takes from control flow goes; what a condition or an effect needs stays."""

from ortopt.testing import check_rewrites

PASS = "control_flow_output_elimination"


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
