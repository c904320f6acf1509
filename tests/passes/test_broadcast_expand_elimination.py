"""What only repeats elements for an op that broadcasts goes; what decides a shape stays."""

import pytest

from ortopt.testing import check_rewrites

PASS = "broadcast_expand_elimination"


ALWAYS = """main (float[N,S] x, bool[N,1,1,S] m) => (float[N,1,S,S] y)
    <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[3] columns = {0, 1, 3}, float low = {-9}, float high = {1}> {
    n = Shape <start = 1, end = 2> (x) k = Squeeze (n, first) r = Range (START, k, STEP)
    u = Unsqueeze (r, columns) c = COMPARE (u, zero) a = And (c, m) w = Where (a, high, low)
    xs = Unsqueeze (x, two) xt = Unsqueeze (x, four) b = Mul (xs, xt) y = Add (b, w) }"""  # noqa: E501
ALWAYS = ALWAYS.replace("float low", "int64[2] two = {1, 2}, int64[2] four = {1, 3}, float low").replace(
    "START", "zero"
)


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
