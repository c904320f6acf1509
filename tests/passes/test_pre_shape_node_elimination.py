"""Shape and Size ask the input of what keeps its shape, where nobody else reads the result."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "pre_shape_node_elimination"


@pytest.mark.parametrize(
    "node", ["Cast <to = 7> (x)", "Relu (x)", "Softmax <axis = 0> (x)", "Clip (x)", "CumSum (x, k)", "PRelu (x, s)"]
)
@pytest.mark.parametrize("size", ["Shape", "Size", "Shape <start = 1>"])
def test_is_bypassed(node: str, size: str) -> None:
    rank = {"Shape": "[2]", "Size": "", "Shape <start = 1>": "[1]"}[size]
    check_rewrites(
        PASS,
        f"main (float[N,M] x, int64 k, float s) => (int64{rank} y) {{ t = {node} y = {size} (t) }}",
        after=f"y = {size} (x)",
    )


@pytest.mark.parametrize(
    "node",
    [
        "ReverseSequence (x, lengths)",
        "ScatterElements (x, places, updates)",
        "ScatterND (x, place, update)",
        "GroupNormalization <num_groups = 3> (x, ones, ones)",
        "RMSNormalization (x, scales)",
    ],
)
def test_is_bypassed_whatever_the_other_operands_are(node: str) -> None:
    check_rewrites(
        PASS,
        f"""main (float[N,3,M] x, int64[3] lengths, int64[1,1,1] places, float[1,1,1] updates, int64[1,3] place,
            float[1] update, float[3] ones, float[M] scales) => (int64[3] y) {{ t = {node} y = Shape (t) }}""",
        after="y = Shape (x)",
        opset=23,
        numbers=False,
    )


def test_a_chain_that_several_ask() -> None:
    check_rewrites(
        PASS,
        """main (float[N,M] x) => (int64[2] y, int64 z) {
            a = Neg (x) b = Cast <to = 10> (a) y = Shape (b) z = Size (b) }""",
        after="y = Shape (x) z = Size (x)",
    )


KEPT = [
    ("used elsewhere", "(float[N] x) => (int64[1] y, float[N] t) { t = Neg (x) y = Shape (t) }"),
    ("used elsewhere", "(float[N] x) => (int64[1] y, float[N] z) { t = Neg (x) y = Shape (t) z = Abs (t) }"),
    ("used elsewhere", "(bool c, float[N] x) => (int64[1] y, float[K] z) { t = Neg (x) y = Shape (t) z = If (c) <then_branch = a () => (float[N] p) { p = Abs (t) }, else_branch = b () => (float[N] q) { q = Neg (x) }> }"),  # noqa: E501
    ("it is another output", "(float[N] x) => (int64[1] y) { a, t = Dropout (x) y = Shape (t) }"),
    ("no Abs or", "(float[N] x, float[M] z) => (int64[1] y) { t = Add (x, z) y = Shape (t) }"),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)
