"""What a Slice takes of an axis is what ONNX Runtime takes, at every bound that is one of its own."""

import numpy as np
import onnx
import pytest

from ortopt.evaluation.sessions import session
from ortopt.ops.moves import taken

LARGEST, SMALLEST, ENDLESS = 2**63 - 1, -(2**63), 2**31 - 1
BOUNDS = (LARGEST, LARGEST - 1, ENDLESS, ENDLESS - 1, 5, 3, 2, 0, -1, -3, -4, -9, -(2**31), SMALLEST + 1, SMALLEST)
STEPS = (1, 2, 7, LARGEST, -1, -2, -7, -LARGEST, SMALLEST)
TEXT = """<ir_version: 9, opset_import: ["": 17]>
main (int64[N] x, int64[1] s, int64[1] e, int64[1] p) => (int64[M] y) <int64[1] a = {0}> {
    y = Slice (x, s, e, a, p) }"""


@pytest.mark.parametrize("size", [0, 1, 3, 6])
def test_as_the_kernel_takes(size: int) -> None:
    kernel = session(onnx.parser.parse_model(TEXT).SerializeToString())
    x = np.arange(size)
    for start in BOUNDS:
        for end in BOUNDS:
            for step in STEPS:
                given = {name: np.array([one]) for name, one in (("s", start), ("e", end), ("p", step))}
                (y,) = kernel.run(None, {"x": x, **given})
                assert list(taken(size, start, end, step)) == y.tolist(), (start, end, step)
