"""A convolution of images of width 1 becomes one of images of height 1."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites
from tests.passes.convolutions import convolution
from tests.passes.tables import keeps

NOT_MEASURED = "nobody has measured whether Conv of columns as rows is faster"
PASS = "tall_conv_conversion"


def model(
    attributes: str = "pads = [1, 0, 1, 0]",
    *,
    image: str = "N,16,64,1",
    weight: tuple[int, ...] = (16, 16, 3, 1),
    **more: str,
) -> str:
    return convolution(attributes, image=image, weight=weight, **more)


REWRITTEN = {
    "pads": model(),
    "no attribute": model("group = 1"),
    "any length, and several images": model(image="2,16,L,1"),
    "all attributes": model(
        "pads = [3, 0, 1, 0], strides = [2, 5], dilations = [2, 3], kernel_shape = [3, 1]", image="N,16,99,1"
    ),
    "one channel": model("strides = [4, 1], pads = [7, 0, 8, 0]", image="N,1,256,1", weight=(16, 1, 16, 1)),
    "an activation": model('activation = "Relu", pads = [1, 0, 1, 0]', conv="com.microsoft.FusedConv"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    after = check_rewrites(PASS, REWRITTEN[name], ops={"Squeeze": 2, "Unsqueeze": 2})
    (conv,) = (node for node in after.graph if node.op_type in ("Conv", "FusedConv"))
    assert conv.inputs[1] is not None and conv.inputs[1].shape is not None
    assert conv.inputs[1].shape[2] == 1


def test_attributes_change_places() -> None:
    after = check_rewrites(PASS, REWRITTEN["all attributes"])
    (conv,) = (node for node in after.graph if node.op_type == "Conv")
    got = {name: list(entry.as_ints()) for name, entry in conv.attributes.items()}
    assert got == {"pads": [0, 3, 0, 1], "strides": [5, 2], "dilations": [3, 2], "kernel_shape": [1, 3]}


KEPT = {
    "any length": ("Conv of pieces of signals is", model(image="N,16,L,1")),
    "work for two threads": ("Conv of pieces of signals is", model(image="N,16,4000,1")),
    "a long kernel, and no equal pieces": (
        "the result is in no equal pieces",
        model("pads = [16, 0, 15, 0]", image="N,16,4001,1", weight=(16, 16, 128, 1)),
    ),
    "two columns": ("the image has several columns", model(image="N,16,64,2")),
    "a width of any size": ("the image has several columns", model(image="N,16,64,W")),
    "a kernel of three columns": (
        "the image has several columns, or the kernel has",
        model("pads = [1, 1, 1, 1]", weight=(16, 16, 3, 3)),
    ),
    "padded columns": ("columns are padded", model("pads = [1, 1, 1, 0]")),
    "automatic padding": ("its padding is not written out", model('auto_pad = "SAME_UPPER"')),
    "groups": ("it has groups", model("group = 2, pads = [1, 0, 1, 0]", weight=(16, 8, 3, 1))),
    "outputs that fill no block": ("the channels fill no blocks", model(weight=(8, 16, 3, 1))),
    "channels that fill no block": ("the channels fill no blocks", model(image="N,8,64,1", weight=(16, 8, 3, 1))),
    "a kernel of one point": (
        NOT_MEASURED,
        model("strides = [1, 1]", weight=(16, 16, 1, 1)),
    ),
    "one channel and a short kernel": (
        NOT_MEASURED,
        model(image="N,1,64,1", weight=(16, 1, 7, 1)),
    ),
    "a short signal": ("but with channels 1, kernel 16 or more, length 32 or more or", model(image="N,16,31,1")),
    "double precision": ("single precision", model(dtype="double")),
    "kept for other runtimes": (None, model(), {"target": "onnx"}),
}


test_kept = keeps(PASS, KEPT)


def test_axes_are_attributes_in_older_opsets() -> None:
    check_rewrites(PASS, model(), ops={"Squeeze": 2, "Unsqueeze": 2}, opset=12)


@pytest.mark.parametrize(("length", "count"), [(4000, 8), (1000, 8), (500, 4)])
def test_pieces_of_the_result_are_rows(length: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a long kernel the pieces of the signal, which overlap by it, are copied for little beside it."""
    monkeypatch.setattr(
        "ortopt.transformers.lowering.onnxruntime_cpu.tall_conv_conversion.is_faster",
        lambda *_, **sizes: sizes["multiplications"] < 100_000,
    )
    text = model("pads = [16, 0, 15, 0]", image=f"N,16,{length},1", weight=(16, 16, 32, 1))
    after = check_rewrites(PASS, text, ops={"Slice": count, "Concat": 1, "Pad": 1, "Reshape": 1, "Conv": 1})
    (conv,) = (node for node in after.graph if node.op_type == "Conv")
    assert list(conv.attributes["pads"].as_ints()) == [0, 0, 0, 0]
