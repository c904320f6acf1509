"""A computed target becomes a constant where it repeats the input's own dimensions; never where it does not."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "expand_fusion"

TARGET = """s = Shape (x) b = Gather (s, zero) l = Gather (s, two) t = Concat <axis = 0> (b, {0}, l)
    y = Expand (x, t)"""
FIXED = "<int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}>"


@pytest.mark.parametrize("shape", [(2, 1, 3), (1, 1, 1), (0, 1, 3), (2, 1, 0)])
def test_own_dimensions(shape: tuple[int, ...]) -> None:
    check_rewrites(
        PASS,
        before=f"main (float[B,1,L] x) => (float[B,4,L] y) {FIXED} {{ {TARGET.format('four')} }}",
        after="n = Constant <value = int64[3] {1, 4, 1}> () y = Expand (x, n)",
        inputs={"x": np.ones(shape, np.float32)},
    )


def test_new_dimensions_in_front_and_fewer() -> None:
    check_rewrites(
        PASS,
        before="""main (float[B,1] x) => (float[2,B,5] y, float[B,1] z) <int64[1] two = {2}, int64[1] five = {5}> {
            s = Shape <start = 0, end = 1> (x) t = Concat <axis = 0> (two, s, five) y = Expand (x, t)
            u = Shape <start = 1> (y) v = Shape <start = 1, end = 2> (x) z = Expand (x, v) }""",
        ops={"Expand": 2, "Concat": 0},
    )


def test_in_a_loop_and_in_a_function() -> None:
    body = "s = Shape (x) one = Constant <value = int64[1] {1}> () f = Constant <value = int64[1] {4}> () "
    body += "l = Slice (s, one, f, zero) t = Concat <axis = 0> (f, l) e = Expand (x, t)"
    check_rewrites(
        PASS,
        before=f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[1,L] x, int64 n) => (float[4,L] y, float[4,L] z) {{
                y = f.F (x)
                start = Expand (x, k)
                zero = Constant <value = int64[1] {{0}}> ()
                k = Constant <value = int64[2] {{4, 1}}> ()
                z = Loop (n, , start) <body = b (int64 i, bool go, float[4,L] p) => (bool on, float[4,L] p1) {{
                    on = Identity (go) {body} p1 = Add (p, e) }}>
            }}
            <domain: "f", opset_import: ["" : 17]>
            F (x) => (e) {{ zero = Constant <value = int64[1] {{0}}> () {body} }}""",
        ops={"Concat": 0},
    )


KEPT = {
    "the dimension N is neither": """main (float[B,1] x, float[N] k) => (float[B,N] y) {
        s = Shape (k) y = Expand (x, s) }""",
    "the target is not known": "main (float[B,1] x, int64[2] s) => (float[B,N] y) { t = Abs (s) y = Expand (x, t) }",
    "the target is not computed": "main (float[B,1] x) => (float[B,4] y) <int64[2] t = {1, 4}> { y = Expand (x, t) }",
}


test_keeps = keeps(PASS, KEPT)


def test_a_target_that_may_be_overridden() -> None:
    text = "main (float[B,1] x, int64[2] t) => (float[B,4] y) <int64[2] t = {1, 4}> { y = Expand (x, t) }"
    check_keeps(PASS, text, "the target is not computed")
