"""Clip after Relu becomes one Clip: in every type, with NaN, and never with bounds that cross."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites, parse, run

PASS = "relu_clip_fusion"


HEAD = "(float[N] x) => (float[N] y)"


@pytest.mark.parametrize("operands", ["nan", "nan, six", ", nan"])
def test_keeps_a_bound_that_is_no_number(operands: str) -> None:
    model = parse(f"""main {HEAD} <float nan = {{1.0}}, float six = {{6.0}}> {{
        t = Relu (x) y = Clip (t, {operands}) }}""")
    model.graph.initializers["nan"].const_value = ir.tensor(np.array(np.nan, np.float32))
    changed, _ = run(PASS, model)
    assert not changed


def test_a_negative_zero_as_min_gives_the_zero_of_the_relu() -> None:
    model = check_rewrites(
        "relu_clip_fusion", "main (float[N] x) => (float[N] y) <float l = {-0.0}> { r = Relu (x) y = Clip (r, l) }"
    )
    (clip,) = model.graph
    assert clip.inputs[1] is not None
    assert clip.inputs[1].const_value is not None
    assert not np.signbit(clip.inputs[1].const_value.numpy())
