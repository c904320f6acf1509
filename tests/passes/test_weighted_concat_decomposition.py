"""A weighted sum along joined parts is a sum of weighted parts."""

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "weighted_concat_decomposition"
TEXT = """main (float[N,3,2] a, float[N,3,2] b, float[N,1,4] w) => (float[N,3] y) <int64[1] last = {-1}> {
    c = Concat <axis = -1> (a, b) p = Mul (c, w) y = ReduceSum <keepdims = 0> (p, last) }"""
AFTER = """v = Constant <value_ints = [2, 2]> () s, t = Split <axis = 2> (w, v) d = Mul (a, s) e = Mul (b, t)
    f = Sum (d, e) y = ReduceSum <keepdims = 0> (f, last)"""
STACK = """main (float[N,3,2] a, float[N,3,2] b, float[N,3,2] c, float[N,3,6] w) => (float[N,3,1] y)
    <int64[1] last = {2}, int64[1] place = {2}, int64[3] flat = {0, 0, -1}> {
    d = Unsqueeze (a, place) e = Unsqueeze (b, place) f = Unsqueeze (c, place)
    s = Concat <axis = -2> (d, e, f) j = Reshape (s, flat) p = Mul (w, j) y = ReduceSum (p, last) }"""


def test_joined_parts() -> None:
    check_rewrites(PASS, TEXT, AFTER)


def test_a_stack_that_is_flattened() -> None:
    check_rewrites(PASS, STACK, ops={"Concat": 0, "Unsqueeze": 0, "Reshape": 0, "Mul": 3, "Sum": 1, "Split": 1})


def test_weights_that_have_fewer_axes_or_make_the_result_larger() -> None:
    check_rewrites(PASS, TEXT.replace("float[N,1,4] w", "float[4] w"), ops={"Concat": 0, "Sum": 1})
    larger = TEXT.replace("float[N,3,2] a, float[N,3,2] b", "float[N,1,2] a, float[N,1,2] b")
    check_rewrites(PASS, larger.replace("float[N,1,4] w", "float[N,3,4] w"), ops={"Concat": 0, "Sum": 1})


test_keeps = keeps(
    PASS,
    [
        ("single precision only", TEXT.replace("float[", "double[")),
        ("sums everything", TEXT.replace("(p, last)", "(p)").replace("float[N,3] y", "float y").replace("<int64[1] last = {-1}> ", "")),  # noqa: E501
        ("sums along other axes", TEXT.replace("{-1}", "{1}").replace("float[N,3] y", "float[N,4] y")),
        ("product is used elsewhere", TEXT.replace("y)", "y, float[N,3,4] p)", 1)),
        ("joined parts are used elsewhere", TEXT.replace("y)", "y, float[N,3,4] c)", 1)),
        ("joined parts are used elsewhere", STACK.replace("y)", "y, float[N,3,3,2] s)", 1)),
        ("no joined parts", TEXT.replace("Mul (c, w)", "Mul (n, w)").replace("p = Mul", "n = Neg (c) p = Mul")),
        ("weights have more axes", TEXT.replace("float[N,1,4] w", "float[2,N,1,4] w").replace("float[N,3] y", "float[2,N,3] y")),  # noqa: E501
        ("joined along another axis", TEXT.replace("axis = -1", "axis = 1").replace("float[N,1,4] w", "float[N,1,2] w").replace("float[N,3] y", "float[N,6] y")),  # noqa: E501
        ("there is one part", TEXT.replace("Concat <axis = -1> (a, b)", "Concat <axis = -1> (a)").replace("float[N,1,4]", "float[N,1,2]").replace(", float[N,3,2] b", "")),  # noqa: E501
        ("but with columns 1 to 16", TEXT.replace(",2]", ",17]").replace("[N,1,4]", "[N,1,34]")),
        ("of no known length", TEXT.replace("N,3,2]", "N,3,K]")),
        ("different sizes", TEXT.replace("float[N,3,2] b", "float[N,3,3] b").replace("[N,1,4]", "[N,1,5]")),
        ("parts share weights", TEXT.replace("[N,1,4]", "[N,1,1]")),
        ("not stacked", STACK.replace("axis = -2", "axis = 1").replace("float[N,3,6] w", "float[N,9,2] w").replace("{0, 0, -1}", "{0, 9, 2}").replace("[N,3,1] y", "[N,9,1] y")),  # noqa: E501
        ("does not flatten", STACK.replace("{0, 0, -1}", "{0, 6, -1}").replace("float[N,3,6] w", "float[N,6,3] w").replace("[N,3,1] y", "[N,6,1] y")),  # noqa: E501
        ("gets another axis", STACK.replace("place = {2}", "place = {3}").replace("N,3,6]", "N,3,3]").replace("N,3,2]", "N,3,1]")),  # noqa: E501
    ],
)  # fmt: skip
