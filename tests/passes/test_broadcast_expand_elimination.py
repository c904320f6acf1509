"""What only repeats elements for an op that broadcasts goes; what decides a shape stays."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "broadcast_expand_elimination"


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max"])
def test_before_an_op_that_broadcasts(op: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[N,4] x, float[1,4] y) => (float[N,4] z) {{ s = Shape (x) e = Expand (y, s) z = {op} (e, x) }}",
        f"main (float[N,4] x, float[1,4] y) => (float[N,4] z) {{ z = {op} (y, x) }}",
    )


def test_through_further_ops() -> None:
    check_rewrites(
        PASS,
        """main (float[N,2,S,S] x, bool[N,1,1,S] m) => (float[N,2,S,S] y, float[N,2,S,S] z)
            <float zero = {0}, float low = {-1000}, int64[1] one = {1}> {
            n = Shape <start = 0, end = 1> (m) s = Shape <start = 3, end = 4> (m)
            shape = Concat <axis = 0> (n, one, s, s) e = Expand (m, shape) k = Not (e) w = Where (k, low, zero)
            y = Add (x, w) t = Neg (x) z = Add (w, t) }""",
        ops={"Expand": 0, "Shape": 0, "Concat": 0, "Not": 1, "Where": 1, "Add": 2},
    )


@pytest.mark.parametrize("op", ["Celu", "Shrink <bias = 0.5>", "Swish <alpha = 2.0>"])
def test_through_an_op_of_one_operand(op: str) -> None:
    check_rewrites(
        PASS,
        f"""main (float[N,4] x, float[1,4] y) => (float[N,4] z) {{
            s = Shape (x) e = Expand (y, s) a = {op} (e) z = Mul (a, x) }}""",
        f"a = {op} (y) z = Mul (a, x)",
        opset=24,
    )


def test_an_operand_of_two_paths() -> None:
    check_rewrites(
        PASS,
        """main (float[N,4] x, float[1,4] y) => (float[N,4] z) {
            s = Shape (x) e = Expand (y, s) a = Neg (e) b = Mul (e, a) z = Add (b, x) }""",
        "a = Neg (y) b = Mul (y, a) z = Add (b, x)",
    )


@pytest.mark.parametrize("value", ["float[1] {2.5}", "float[1] {-0.0}"])
def test_a_constant_of_shape(value: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[N,4] x) => (float[N,4] y) {{ s = Shape (x) c = ConstantOfShape <value = {value}> (s) y = Add (x, c) }}",  # noqa: E501
        ops={"Shape": 0, "ConstantOfShape": 0, "Add": 1},
    )


ALWAYS = """main (float[N,S] x, bool[N,1,1,S] m) => (float[N,1,S,S] y)
    <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[3] columns = {0, 1, 3}, float low = {-9}, float high = {1}> {
    n = Shape <start = 1, end = 2> (x) k = Squeeze (n, first) r = Range (START, k, STEP)
    u = Unsqueeze (r, columns) c = COMPARE (u, zero) a = And (c, m) w = Where (a, high, low)
    xs = Unsqueeze (x, two) xt = Unsqueeze (x, four) b = Mul (xs, xt) y = Add (b, w) }"""  # noqa: E501
ALWAYS = ALWAYS.replace("float low", "int64[2] two = {1, 2}, int64[2] four = {1, 3}, float low").replace(
    "START", "zero"
)


def test_a_comparison_that_always_holds() -> None:
    check_rewrites(
        PASS,
        ALWAYS.replace("STEP", "one").replace("COMPARE", "GreaterOrEqual"),
        ops={"And": 0, "Range": 0, "GreaterOrEqual": 0, "Where": 1},
        inputs={"x": np.ones((2, 3), np.float32), "m": np.ones((2, 1, 1, 3), bool)},
    )


@pytest.mark.parametrize(("compare", "step"), [("LessOrEqual", "one"), ("Greater", "one"), ("Equal", "one")])
def test_keeps_a_comparison_that_may_fail(compare: str, step: str) -> None:
    check_keeps(PASS, ALWAYS.replace("STEP", step).replace("COMPARE", compare), "no operand is always true")


def test_or_with_what_never_holds() -> None:
    check_rewrites(
        PASS,
        "main (bool[N] x) => (bool[N] y) <bool f = {0}> { y0 = Or (f, x) y = Not (y0) }",
        "main (bool[N] x) => (bool[N] y) { y = Not (x) }",
    )


EXPANDED = "main (float[N,4] x, float[1,4] y) => (float[N,4] z) { s = Shape (x) e = Expand (y, s) BODY }"


test_keeps = keeps(
    PASS,
    [
        ("the expanded value is a graph output", EXPANDED.replace("z)", "z, float[N,4] e)").replace("BODY", "z = Add (e, x)")),  # noqa: E501
        ("the expanded value is a graph output", EXPANDED.replace("BODY", "z = Neg (e)")),
        ("does not treat each element alike", EXPANDED.replace("BODY", "z = Softmax (e)")),
        ("not known what the operands broadcast to", EXPANDED.replace("float[N,4] x,", "float[N,4] x, float[M,1] o,").replace("float[N,4] z", "float[A,B] z").replace("BODY", "p = Add (e, o) z = Add (p, x)")),  # noqa: E501
        ("a subgraph uses it", EXPANDED.replace("x,", "x, bool c,").replace("BODY", "z = If (c) <then_branch = a () => (p) { p = Add (x, e) }, else_branch = b () => (q) { q = Neg (x) }>")),  # noqa: E501
        ("nobody uses it", "main (float[N,4] x, float[1,4] y) => (float[N,4] e) { s = Shape (x) e = Expand (y, s) }"),
        (
            "it adds other axes than leading ones",
            """main (int64[S] r, int64[T] c) => (bool[1,S,T] y) <int64[2] both = {0, 2}> {
                q = Unsqueeze (r, both) y = Less (c, q) }""",
        ),
        (
            None,
            """main (float[T] c, float[S,T] d) => (float[1,T] y, float[1,1,T] z)
                <int64[1] first = {0}, int64[2] both = {0, 1}> {
                k = Unsqueeze (c, first) y = Neg (k) m = Unsqueeze (c, both) z = Identity (m) }""",
        ),
        (
            "no operand is always true",
            """main (bool[B,S,T] c, float[B,T] x) => (float[B,S,T] y) <float low = {-9}, float none = {0}> {
                s = Shape (x) o = ConstantOfShape (s) k = Cast <to = 9> (o) e = Squeeze (k) a = And (c, e)
                y = Where (a, none, low) }""",
        ),
    ],
)  # fmt: skip


COMPARED = """main (int64[S] r, int64[T] c) => (bool[1,S,T] y) <int64[1] first = {0}, int64[2] both = {0, 2}> {
    k = Unsqueeze (c, FIRST) q = Unsqueeze (r, both) y = Less (k, q) }"""


@pytest.mark.parametrize("opset", [11, 17])
def test_leading_axes(opset: int) -> None:
    text = COMPARED.replace("FIRST", "first")
    if opset == 11:
        text = text.replace("(c, first)", "<axes = [0]> (c)").replace("(r, both)", "<axes = [-1, 0]> (r)")
        text = text.replace("<int64[1] first = {0}, int64[2] both = {0, 2}>", "")
    model = check_rewrites(PASS, text, ops={"Unsqueeze": 1, "Less": 1}, opset=opset)
    (less,) = (node for node in model.graph if node.op_type == "Less")
    assert less.inputs[0] is model.graph.inputs[1]


@pytest.mark.parametrize(("number", "op"), [(1, "And"), (0, "Or")])
def test_a_mask_that_an_exporter_made_of_nothing(number: int, op: str) -> None:
    check_rewrites(
        PASS,
        f"""main (bool[S,T] c, float[B,T] x) => (float[B,S,T] y)
            <int64[1] one = {{1}}, float low = {{-9}}, float none = {{0}}> {{
            s = Shape (x) o = ConstantOfShape <value = int64[1] {{{number}}}> (s) k = Cast <to = 9> (o)
            u = Unsqueeze (k, one) a = {op} (c, u) w = Where (a, none, low) z = Unsqueeze (x, one) y = Add (z, w) }}""",
        ops={"ConstantOfShape": 0, "Cast": 0, op: 0},
    )
