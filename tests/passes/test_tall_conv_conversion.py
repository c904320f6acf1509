"""A convolution of images of width 1 becomes one of images of height 1."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites
from tests.passes import example_files
from tests.passes.convolutions import convolution
from tests.passes.sessions import passed

PASS = "tall_conv_conversion"


def the_conv(model: ir.Model) -> ir.Node:
    (conv,) = (node for node in model.graph if node.op_type == "Conv")
    return conv


def test_attributes_change_places() -> None:
    conv = the_conv(passed(PASS, example_files.text(PASS, "a row instead of a column / all attributes")))
    got = {name: list(entry.as_ints()) for name, entry in conv.attributes.items()}
    assert got == {"pads": [0, 3, 0, 1], "strides": [5, 2], "dilations": [3, 2], "kernel_shape": [1, 3]}
    assert conv.inputs[1] is not None and conv.inputs[1].shape is not None
    assert conv.inputs[1].shape[2] == 1


@pytest.mark.parametrize(("length", "count"), [(4000, 8), (1000, 8), (500, 4)])
def test_pieces_of_the_result_are_rows(length: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a long kernel the pieces of the signal, which overlap by it, are copied for little beside it."""
    module = "ortopt.transformers.lowering.onnxruntime_cpu.signal_conv_conversions"
    monkeypatch.setattr(f"{module}.is_divided", lambda *_, **__: False)
    text = convolution("pads = [16, 0, 15, 0]", image=f"N,16,{length},1", weight=(16, 16, 32, 1))
    after = check_rewrites(PASS, text, ops={"Slice": count, "Concat": 1, "Pad": 1, "Reshape": 1, "Conv": 1})
    assert list(the_conv(after).attributes["pads"].as_ints()) == [0, 0, 0, 0]
