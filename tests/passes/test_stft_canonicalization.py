"""STFT's default is spelled out: ONNX Runtime loads the model where the signal's length is known."""

from __future__ import annotations

from ortopt import optimize
from ortopt.testing import parse


def test_a_signal_whose_length_becomes_known_can_be_loaded() -> None:
    """The Pad's sizes are computed from the signal's: only symbolic arithmetic knows what comes out."""
    model = parse("""<ir_version: 9, opset_import: ["" : 17]> main (float[B,N] x) => (float[B,F,3] y)
        <int64 step = {2}, int64[1] all = {20}, int64[4] end = {0, 0, 0, 1}, float[4] window = {0.1, 1, 1, 0.1},
         float[3,3] bank = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
        {
            n = Shape <start = 1> (x)
            missing = Sub (all, n)
            pads = Mul (missing, end)
            padded = Pad (x, pads)
            spectrum = STFT (padded, step, window)
            power = ReduceSumSquare <axes = [-1], keepdims = 0> (spectrum)
            y = MatMul (power, bank)
        }""")
    result = optimize(model)
    assert result.verified
    spectrum = next(node for node in result.model.graph if node.op_type == "STFT")
    assert [str(dim) for dim in spectrum.outputs[0].shape or ()] == ["B", "9", "3", "2"]
