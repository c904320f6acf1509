"""A convolution of signals becomes one of images of height 1, where ONNX Runtime's blocked kernel is faster."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites
from tests.passes.convolutions import convolution

PASS = "conv1d_conversion"


LONG = (16, 16, 32)
PIECES = {
    "no padding": ("group = 1", "N,16,799", LONG, 8),
    "padding": ("pads = [16, 15]", "N,16,768", LONG, 8),
    "several signals, perhaps": ("pads = [15, 16]", "N,16,1000", LONG, 8),
    "four pieces": ("pads = [15, 16]", "N,16,500", LONG, 4),
    "two pieces": ("pads = [15, 16]", "N,16,502", LONG, 2),
    "strides": ("strides = [3], pads = [16, 15]", "N,16,1536", LONG, 8),
    "dilations": ("dilations = [2], pads = [31, 31]", "N,16,512", LONG, 8),
    "one channel": ("strides = [2]", "N,1,1022", (32, 1, 256), 4),
}


@pytest.mark.parametrize("case", PIECES)
def test_pieces_of_the_result_are_rows(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a long kernel the pieces of the signal, which overlap by it, are copied for little beside it."""
    module = "ortopt.transformers.lowering.onnxruntime_cpu.signal_conv_conversions"
    monkeypatch.setattr(f"{module}.is_divided", lambda *_, **__: False)
    attributes, image, weight, count = PIECES[case]
    ops = {"Conv": 1, "Unsqueeze": 1, "Slice": count, "Concat": 1, "Reshape": 1, "Pad": int("pads" in attributes)}
    check_rewrites(PASS, convolution(attributes, image=image, weight=weight), ops=ops)
