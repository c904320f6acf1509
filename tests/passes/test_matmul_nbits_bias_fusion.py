"""A bias behind a product with a weight of few bits becomes its input."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites, parse, run

PASS = "matmul_nbits_bias_fusion"
WEIGHT = ", ".join(str(number) for number in np.random.default_rng(1).integers(0, 256, 48))
PACKED = f"uint8[3,1,16] w = {{{WEIGHT}}}, float[3] s = {{0.05, 0.06, 0.07}}"


def model(end: str = "y = Add (t, c)", level: int = 0, bias: str = "float[3] c = {1, -2, 0.5}", more: str = "") -> str:
    return f"""main (float[2,N,32] x) => (float[2,N,3] y) <{PACKED}, {bias}> {{
        t = com.microsoft.MatMulNBits <K = 32, N = 3, bits = 4, block_size = 32, accuracy_level = {level}>
        (x, w, s{more}) {end} }}"""


@pytest.mark.parametrize("level", [0, 1, 4])
@pytest.mark.parametrize("end", ["y = Add (t, c)", "y = Add (c, t)", "y = Sum (t, c)"])
def test_fuses(end: str, level: int) -> None:
    result = check_rewrites(PASS, model(end, level), ops={"com.microsoft::MatMulNBits": 1, "Add": 0, "Sum": 0})
    (node,) = result.graph
    assert [value and value.name for value in node.inputs] == ["x", "w", "s", None, None, "c"]


def test_a_bias_that_is_an_input() -> None:
    text = model(bias="float unused = {1}").replace(", float unused = {1}", "").replace("32] x)", "32] x, float[3] c)")
    changed, _ = run(PASS, parse(text))
    assert changed
