"""A Loop of no iteration or of one goes; bounds, conditions and scans as the specification has them."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "loop_unrolling"

BODY = """body = body (int64 i, bool go, float[2] p) => (bool on, float[2] p1, float[2] s1) {
    on = Identity (go) f = Cast <to = 1> (i) q = Add (p, f) p1 = Exp (q) s1 = Neg (p) }"""


@pytest.mark.parametrize(
    ("inputs", "more"),
    [
        ("m, , x", "<int64 m = {0}>"),
        ("m, c, x", "<int64[1] m = {-3}, bool c = {1}>"),
        ("n, c, x", "<bool c = {0}>"),
        (", c, x", "<bool c = {0}>"),
    ],
)
def test_no_iteration(inputs: str, more: str) -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[2] x, int64 n) => (float[2] y, float[N,2] s) {more} {{
            a, t = Loop ({inputs}) <{BODY}>
            y = Relu (a)
            s = Abs (t)
        }}""",
        after="y = Relu (x) e = Constant <value = float[0,2] {}> () s = Abs (e)",
    )


def test_no_iteration_and_only_outputs() -> None:
    model = check_rewrites(
        PASS,
        before=f"""main (float[2] x) => (float[2] y, float[N,2] s) <int64 m = {{0}}> {{
            y, s = Loop (m, , x) <{BODY}> }}""",
        ops={"Loop": 0, "Identity": 2},
    )
    assert [value.name for value in model.graph.outputs] == ["y", "s"]


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
def test_one_iteration(opset: int) -> None:
    axes = "<axes = [0]> (n)" if opset < 13 else "(n, zero)"
    check_rewrites(
        PASS,
        before=f"""main (float[2] x) => (float[2] y, float[N,2] s) <int64 m = {{1}}, bool c = {{1}}> {{
            a, t = Loop (m, c, x) <{BODY}>
            y = Relu (a)
            s = Abs (t)
        }}""",
        after=f"""
            zero = Constant <value = int64[1] {{0}}> ()
            i = Constant <value = int64 {{0}}> ()
            f = Cast <to = 1> (i)
            q = Add (x, f)
            p = Exp (q)
            n = Neg (x)
            u = Unsqueeze {axes}
            y = Relu (p)
            s = Abs (u)""",
        opset=opset,
    )


@pytest.mark.parametrize(
    ("inputs", "more"), [(", yes, x", "bool yes = {1}"), ("m, , x", "int64 m = {7}"), ("m, , x", "int64[1] m = {5}")]
)
def test_a_condition_that_ends_it_at_once(inputs: str, more: str) -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[2] x) => (float[2] y) <{more}> {{
            y = Loop ({inputs}) <body = body (int64 i, bool go, float[2] p) => (bool on, float[2] p1)
                <bool no = {{0}}> {{ on = Identity (no) p1 = Exp (p) }}>
        }}""",
        ops={"Loop": 0, "Exp": 1},
    )


def test_the_bound_is_a_symbol_that_is_a_number() -> None:
    """Shape arithmetic decides as a constant does."""
    check_rewrites(
        PASS,
        before="""main (float[N,1] x) => (float[N,1] y) {
            s = Shape <start = 1> (x)
            y = Loop (s, , x) <body = body (int64 i, bool go, float[N,1] p) => (bool on, float[N,1] p1) {
                on = Identity (go) p1 = Exp (p) }>
        }""",
        ops={"Loop": 0, "Exp": 1},
    )


def test_states_returned_crosswise_and_the_condition_as_a_state() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, float[2] z, bool k) => (float[2] a, float[2] b, bool c, bool[1] d) <int64 m = {1}> {
            a, b, c, d = Loop (m, , x, z, k) <
                body = body (int64 i, bool go, float[2] p, float[2] q, bool r)
                    => (bool on, float[2] q, float[2] p, bool r, bool go) { on = Identity (go) }
            >
        }""",
        ops={"Loop": 0},
        numbers=False,  # ONNX Runtime wants what a body returns to be computed in it
    )


def test_loops_in_loops() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x) => (float[2] y) <int64 one = {1}> {
            y = Loop (one, , x) <body = outer (int64 i, bool go, float[2] p) => (bool on, float[2] p1) {
                on = Identity (go)
                p1 = Loop (one, go, p) <body = inner (int64 j, bool go2, float[2] q) => (bool on2, float[2] q1) {
                    on2 = Identity (go2) t = Add (q, x) q1 = Exp (t) }>
            }>
        }""",
        ops={"Loop": 0, "Add": 1, "Exp": 1},
    )


def test_in_a_branch_with_initializers_and_in_a_function() -> None:
    loop = """r = Loop (one, , x) <body = b (int64 i, bool go, float[2] p) => (bool on, float[2] p1)
        <float[2] w = {3, 4}> { on = Identity (go) p1 = Add (p, w) }>"""
    check_rewrites(
        PASS,
        before=f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[2] x, bool c) => (float[2] y, float[2] z) {{
                y = f.F (x)
                z = If (c) <
                    then_branch = t () => (float[2] r) <int64 one = {{1}}> {{ {loop} }},
                    else_branch = e () => (float[2] o) {{ o = Abs (x) }}
                >
            }}
            <domain: "f", opset_import: ["" : 17]>
            F (x) => (r) {{ one = Constant <value = int64 {{1}}> () {loop} }}""",
        ops={"Loop": 0, "Add": 2},
    )


def test_random_numbers_are_drawn_once() -> None:
    model = parse("""main (float[2] x) => (float[2] y) <int64 one = {1}> {
        y = Loop (one, , x) <body = b (int64 i, bool go, float[2] p) => (bool on, float[2] p1) {
            on = Identity (go) r = RandomNormalLike (p) p1 = Add (p, r) }>
    }""")
    changed, _ = run(PASS, model)
    assert changed
    assert [node.op_type for node in model.graph if node.op_type != "Identity"] == ["RandomNormalLike", "Add"]


KEPT = {
    "it may make more than one iteration": ("m, , x", "<int64 m = {2}>"),
    "whether it begins is not known": ("m, k, x", "<int64 m = {1}>"),
    "may make more than one iteration": ("n, , x", ""),
}


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    inputs, more = KEPT[because]
    check_keeps(
        PASS,
        f"""main (float[2] x, int64 n, bool k) => (float[2] y, float[N,2] s) {more} {{
            y, s = Loop ({inputs}) <{BODY}> }}""",
        because,
    )


def test_a_bound_that_may_be_overridden() -> None:
    check_keeps(
        PASS,
        f"""main (float[2] x, int64 m) => (float[2] y, float[N,2] s) <int64 m = {{1}}> {{
            y, s = Loop (m, , x) <{BODY}> }}""",
        "may make more than one iteration",
    )


def test_a_bound_that_is_unknown_may_be_zero_though_the_condition_ends_it() -> None:
    check_keeps(
        PASS,
        """main (float[2] x, int64 n) => (float[2] y) {
            y = Loop (n, , x) <body = body (int64 i, bool go, float[2] p) => (bool on, float[2] p1)
                <bool no = {0}> { on = Identity (no) p1 = Exp (p) }>
        }""",
        "may make more than one iteration",
    )


def test_an_empty_result_of_unknown_shape() -> None:
    check_keeps(
        PASS,
        """main (float[N] x) => (float[N] y, float[M,K] s) <int64 m = {0}> {
            y, s = Loop (m, , x) <body = body (int64 i, bool go, float[N] p) => (bool on, float[N] p1, float[N] s1) {
                on = Identity (go) p1 = Exp (p) s1 = Neg (p) }>
        }""",
        "the shape of an empty result is not known",
    )


def test_numbers_of_one_iteration() -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[2] x) => (float[2] y, float[N,2] s) <int64 m = {{1}}> {{
            a, t = Loop (m, , x) <{BODY}> y = Neg (a) s = Neg (t) }}""",
        inputs={"x": np.array([np.nan, -0.0], np.float32)},
    )
