"""Shape and Size ask the input of what keeps its shape, where nobody else reads the result."""

import pytest

from ortopt.testing import check_rewrites

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
