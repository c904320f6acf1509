"""Shapes are read from what is there where that takes fewer nodes, and never where it does not."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "shape_rebuilding"


GATHERED = """s = Shape (x) b = Gather (s, zero) l = Gather (s, one) bu = Unsqueeze (b, at0) lu = Unsqueeze (l, at0)
    t = Concat <axis = 0> (bu, lu, n4) z = ConstantOfShape (t)"""


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (1, 1)])
def test_gathered_one_by_one(shape: tuple[int, ...]) -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[B,L] x) => (float[B,L,4] z)
            <int64 zero = {{0}}, int64 one = {{1}}, int64[1] at0 = {{0}}, int64[1] n4 = {{4}}> {{ {GATHERED} }}""",
        after="s = Shape (x) n = Constant <value = int64[1] {4}> () t = Concat<axis=0> (s, n) z = ConstantOfShape (t)",
        inputs={"x": np.ones(shape, np.float32)},
    )


@pytest.mark.parametrize(("opset", "ops"), [(13, {"Shape": 1, "Gather": 1}), (15, {"Shape": 1, "Gather": 0})])
def test_what_arithmetic_gives_again(opset: int, ops: dict[str, int]) -> None:
    check_rewrites(
        PASS,
        before="""main (float[B,L] x) => (float[B,1] z) <int64 zero = {0}, int64 four = {4}, int64[1] at0 = {0},
            int64[1] n1 = {1}> {
            s = Shape (x) b = Gather (s, zero) m = Mul (b, four) d = Div (m, four) u = Unsqueeze (d, at0)
            t = Concat <axis = 0> (u, n1) z = ConstantOfShape (t) }""",
        ops={**ops, "Concat": 1, "Mul": 0, "Div": 0, "Unsqueeze": 0},
        opset=opset,
    )


def test_a_scalar() -> None:
    check_rewrites(
        PASS,
        before="""main (float[B,L] x) => (int64[L] z) <int64 zero = {0}, int64 one = {1}, int64 four = {4}> {
            s = Shape (x) l = Gather (s, one) m = Add (l, four) d = Sub (m, four) z = Range (zero, d, one) }""",
        ops={"Shape": 1, "Squeeze": 1, "Add": 0, "Sub": 0, "Range": 1},
    )


def test_a_comparison_that_dimensions_decide() -> None:
    """What vision transformers make of expand(batch, -1, -1)."""
    check_rewrites(
        PASS,
        before="""main (float[B,L] x, float[1,1] c) => (float[B,1] z)
            <int64 zero = {0}, int64[1] at0 = {0}, int64[1] m1 = {-1}, int64[2] minus = {-1, -1},
             int64[2] ones = {1, 1}> {
            s = Shape (x) b = Gather (s, zero) u = Unsqueeze (b, at0) t = Concat <axis = 0> (u, m1)
            e = Equal (t, minus) w = Where (e, ones, t) z = Expand (c, w) }""",
        ops={"Equal": 0, "Where": 0, "Shape": 1, "Concat": 1},
    )


def test_a_dimension_that_only_the_input_of_its_own_shape_has() -> None:
    check_rewrites(
        PASS,
        before="""main (float[B,4,8] x) => (float[?,8] z, float[N,8] r) <int64 zero = {0}, int64[1] at0 = {0},
            int64[1] n8 = {8}, int64[2] to = {-1, 8}, int64 four = {4}> {
            r = Reshape (x, to) q = Relu (r) s = Shape (q) b = Gather (s, zero) m = Add (b, four) d = Sub (m, four)
            u = Unsqueeze (d, at0) t = Concat <axis = 0> (u, n8) z = ConstantOfShape (t) }""",
        ops={"Add": 0, "Sub": 0, "Gather": 0, "Shape": 1},
    )


def test_in_a_loop_and_in_a_function() -> None:
    nodes = """zero = Constant <value = int64 {{0}}> () one = Constant <value = int64 {{1}}> ()
        at0 = Constant <value = int64[1] {{0}}> () s = Shape ({0}) b = Gather (s, zero) l = Gather (s, one)
        bu = Unsqueeze (b, at0) lu = Unsqueeze (l, at0) t = Concat <axis = 0> (lu, bu) c = ConstantOfShape (t)"""
    check_rewrites(
        PASS,
        before=f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[B,L] x, int64 n) => (float[L,B] y, float[B,L] z) {{
                y = f.F (x)
                z = Loop (n, , x) <body = b (int64 i, bool go, float[B,L] p) => (bool on, float[B,L] p1) {{
                    on = Identity (go) {nodes.format("p")} v = Transpose (c) p1 = Add (p, v) }}>
            }}
            <domain: "f", opset_import: ["" : 17]>
            F (x) => (c) {{ {nodes.format("x")} }}""",
        ops={"Shape": 4, "Gather": 0, "Unsqueeze": 0, "Concat": 2},
    )


def test_what_is_as_short_stays() -> None:
    check_keeps(
        PASS,
        """main (float[B,L] x) => (float[B,4] z, int64[L] r) <int64[1] n4 = {4}, int64 zero = {0}, int64 one = {1}> {
            s = Shape <start = 0, end = 1> (x) t = Concat <axis = 0> (s, n4) z = ConstantOfShape (t)
            q = Shape (x) l = Gather (q, one) r = Range (zero, l, one) }""",
    )


SUM = """main (float[B,L] x, float[B,P] p) => (float[N] z) <int64[1] one = {1}> {
    s = Shape (x) t = Shape (p) a = Gather (s, one) b = Gather (t, one) c = Add (a, b) z = ConstantOfShape (c) }"""


def test_what_is_nowhere_to_be_read_is_computed_of_what_is() -> None:
    check_rewrites(
        PASS,
        SUM,
        "a = Shape <start = 1, end = 2> (x) b = Shape <start = 1, end = 2> (p) c = Add (a, b) z = ConstantOfShape (c)",
    )


def test_what_is_nowhere_to_be_read_stays_where_its_operands_cost_as_much() -> None:
    check_keeps(PASS, SUM, opset=14)  # a part of a shape takes two nodes there


def test_an_operand_of_what_stays_is_read_from_an_input() -> None:
    """Keys that were transposed, of which a length was taken: nothing reads them any more."""
    check_rewrites(
        PASS,
        """main (float[B,L] x, float[B,2,P,4] p) => (float[B,L] y, float[N] z)
            <int64 one = {1}, int64[1] at0 = {0}, int64[1] at2 = {2}> {
            y = Neg (x) e = Exp (x) s = Shape (e) i = Gather (s, one) u = Unsqueeze (i, at0) t = Shape (p)
            j = Gather (t, at2) c = Add (u, j) z = ConstantOfShape (c) }""",
        """y = Neg (x) a = Shape <start = 1, end = 2> (x) b = Shape <start = 2, end = 3> (p) c = Add (a, b)
            z = ConstantOfShape (c)""",
    )


def test_scalars_that_are_the_same_are_built_once() -> None:
    """Of which one is needed, and the other one is an operand of what stays."""
    check_rewrites(
        PASS,
        """main (float[B,L] x) => (int64[N] z, int64 m) <int64 zero = {0}, int64 one = {1}, int64 four = {4}> {
            s = Shape (x) l = Gather (s, one) m = Add (l, four) d = Sub (m, four) z = Range (zero, d, one) }""",
        "a = Shape <start = 1, end = 2> (x) d = Squeeze (a) m = Add (d, four) z = Range (zero, d, one)",
    )


def test_a_graph_output_stays() -> None:
    check_keeps(
        PASS,
        """main (float[B,L] x) => (int64 d) <int64 zero = {0}, int64 four = {4}> {
            s = Shape (x) b = Gather (s, zero) m = Add (b, four) d = Sub (m, four) }""",
    )


def test_data_is_no_shape() -> None:
    check_keeps(
        PASS,
        """main (int64[B] x, float[B] y) => (int64[B] z) <int64 zero = {0}, int64[1] at0 = {0}> {
            s = Shape (y) b = Gather (s, zero) a = Add (x, b) c = Sub (a, b) z = Mul (c, x) }""",
    )
