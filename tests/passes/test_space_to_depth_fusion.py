"""Blocks joined row by row are a SpaceToDepth; in another order, a Conv's weights or a Gather follow them."""

import numpy as np
import onnx.reference
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import parse

LONG = 2**63 - 1
FOCUS = f"""main (float[N,C,H,6] x) => (float[A,B,D,E] y)
    <int64[2] zero = {{0, 0}}, int64[2] row = {{1, 0}}, int64[2] column = {{0, 1}}, int64[2] both = {{1, 1}},
     int64[2] long = {{{LONG}, 6}}, int64[2] axes = {{2, -1}}, int64[2] two = {{2, 2}}> {{
    a = Slice (x, zero, long, axes, two) b = Slice (x, row, long, axes, two)
    c = Slice (x, column, long, axes, two) d = Slice (x, both, long, axes, two)
    k = Concat <axis = 1> (a, c, b, d) y = Neg (k) }}""".replace("[N,C,H,6]", "[N,3,4,6]")


def test_a_single_row_is_no_image_of_blocks() -> None:
    """ONNX Runtime skips what is empty; the specification does not, and there is no number to be kept."""
    text = FOCUS.replace("[N,3,4,6]", "[N,C,H,W]").replace(", 6}", f", {LONG}}}")
    evaluator = onnx.reference.ReferenceEvaluator(onnx.load_from_string(to_bytes(parse(text))))
    assert evaluator.run(None, {"x": np.ones((1, 1, 4, 2), np.float32)})[0].shape == (1, 4, 2, 1)
    with pytest.raises(ValueError, match="must match exactly"):
        evaluator.run(None, {"x": np.ones((1, 1, 1, 2), np.float32)})
