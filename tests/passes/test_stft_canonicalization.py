"""STFT's default is spelled out: ONNX Runtime loads the model where the signal's length is known."""

from __future__ import annotations

import pytest

from ortopt import optimize
from ortopt.testing import check_rewrites, parse

PASS = "stft_canonicalization"

TEXT = """<ir_version: 9, opset_import: ["" : {opset}]> main (float[{signal}] x) => (float[B,F,{bins},2] y)
    <int64 step = {{2}}{constants}> {{ y = STFT {attributes} (x, step, {more}) }}"""
CONSTANTS = {
    "length": "int64 length = {8}",
    "window": "float[8] window = {0.1, 0.4, 0.8, 1, 1, 0.8, 0.4, 0.1}",
}


def text(signal: str = "B,N", attributes: str = "", bins: int = 5, more: str = "window", opset: int = 17) -> str:
    constants = "".join(f", {constant}" for name, constant in CONSTANTS.items() if name in more)
    return TEXT.format(signal=signal, attributes=attributes, bins=bins, more=more, opset=opset, constants=constants)


@pytest.mark.parametrize("opset", [17, 20, 22])
@pytest.mark.parametrize("signal", ["2,16,1", "B,N,1", "2,16", "B,N"])
@pytest.mark.parametrize("more", ["window", "window, length", ", length"])
def test_the_default_is_spelled_out(signal: str, more: str, opset: int) -> None:
    model = check_rewrites(
        PASS,
        before=text(signal, more=more, opset=opset),
        numbers="N" not in signal,  # no signal that is drawn for a symbol is longer than a frame
    )
    (node,) = model.graph
    assert node.attributes.get_int("onesided") == 1


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
