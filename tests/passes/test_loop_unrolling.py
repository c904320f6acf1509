"""A Loop of no iteration or of one goes; bounds, conditions and scans as the specification has them."""

from ortopt.testing import check_rewrites, parse, run

PASS = "loop_unrolling"

BODY = """body = body (int64 i, bool go, float[2] p) => (bool on, float[2] p1, float[2] s1) {
    on = Identity (go) f = Cast <to = 1> (i) q = Add (p, f) p1 = Exp (q) s1 = Neg (p) }"""


def test_no_iteration_and_only_outputs() -> None:
    model = check_rewrites(
        PASS,
        before=f"""main (float[2] x) => (float[2] y, float[N,2] s) <int64 m = {{0}}> {{
            y, s = Loop (m, , x) <{BODY}> }}""",
        ops={"Loop": 0, "Identity": 2},
    )
    assert [value.name for value in model.graph.outputs] == ["y", "s"]


def test_random_numbers_are_drawn_once() -> None:
    model = parse("""main (float[2] x) => (float[2] y) <int64 one = {1}> {
        y = Loop (one, , x) <body = b (int64 i, bool go, float[2] p) => (bool on, float[2] p1) {
            on = Identity (go) r = RandomNormalLike (p) p1 = Add (p, r) }>
    }""")
    changed, _ = run(PASS, model)
    assert changed
    assert [node.op_type for node in model.graph if node.op_type != "Identity"] == ["RandomNormalLike", "Add"]
