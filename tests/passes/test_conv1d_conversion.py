"""A convolution of signals becomes one of images of height 1, where ONNX Runtime's blocked kernel is faster."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.tables import keeps

PASS = "conv1d_conversion"


def model(
    attributes: str = "pads = [1, 1]",
    *,
    channels: int = 32,
    weight: tuple[int, int, int] = (32, 32, 3),
    length: str = "200",
    bias: bool = True,
    conv: str = "Conv",
    dtype: str = "float",
) -> str:
    """A convolution of one node; its weights are computed from constants, so that they are short to write."""
    outputs, inputs, kernel = weight
    numbers = ",".join(str(0.25 * ((3 * place) % 7 - 3)) for place in range(outputs * inputs * kernel))
    more = ", ".join(str(place % 5) for place in range(outputs))
    declared = f"{dtype}[{outputs}] b = {{{more}}}"
    return f"""main ({dtype}[N,{channels},{length}] x) => ({dtype}[N,{outputs},M] y)
        <{dtype}[{outputs},{inputs},{kernel}] w = {{{numbers}}}{", " + declared if bias else ""}> {{
            y = {conv} <{attributes}> (x, w{", b" if bias else ""})
        }}"""


IMAGE = {"Conv": 1, "Unsqueeze": 1, "Squeeze": 1}
REWRITTEN = {
    "pads": model(),
    "any length, and work for two threads": model(weight=(128, 32, 3), length="L"),
    "any length, and groups": model("group = 2, pads = [1, 1]", weight=(32, 16, 3), length="L"),
    "any length, and several signals": model(length="L").replace("[N,", "[2,"),
    "no attribute": model("group = 1"),
    "no bias": model(bias=False),
    "strides and dilations": model("strides = [2], dilations = [3], kernel_shape = [3], pads = [2, 1]"),
    "automatic padding": model('auto_pad = "SAME_UPPER"'),
    "automatic padding in front": model('auto_pad = "SAME_LOWER", strides = [2]'),
    "groups": model("group = 2, pads = [1, 1]", weight=(32, 16, 3)),
    "each channel by itself": model("group = 32, pads = [1, 1]", weight=(32, 1, 3)),
    "each channel of a short signal": model("group = 32, pads = [1, 1]", weight=(32, 1, 3), length="5"),
    "many channels of a short signal": model(channels=64, weight=(64, 64, 3), length="5"),
    "a long kernel of a short signal": model("pads = [8, 7]", weight=(16, 32, 16), length="8"),
    "one channel and a long kernel": model("strides = [4]", channels=1, weight=(16, 1, 64)),
    "fewer outputs": model(weight=(16, 32, 5)),
    "as few inputs": model(channels=16, weight=(16, 16, 3)),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewrites(case: str) -> None:
    check_rewrites(PASS, REWRITTEN[case], ops=IMAGE)


@pytest.mark.parametrize("opset", [11, 12, 13, 21])
def test_axes_are_attributes_or_inputs(opset: int) -> None:
    check_rewrites(PASS, model(), ops=IMAGE, opset=opset)


def test_a_convolution_with_its_activation() -> None:
    text = model('activation = "Relu", pads = [1, 1]', conv="com.microsoft.FusedConv")
    check_rewrites(PASS, text, ops={"com.microsoft::FusedConv": 1, "Unsqueeze": 1, "Squeeze": 1})


KEPT = {
    "the rank is not 3": model("pads = [1, 1, 0, 0]").replace("N,32,200", "N,32,200,1").replace("N,32,M", "N,32,M,1")
    .replace("float[32,32,3]", "float[32,32,3,1]"),
    "for single precision only": model(dtype="double"),
    "the channels fill no blocks": model(channels=8, weight=(32, 8, 3)),
    "length 100 or more or": model(length="64"),
    "Conv of pieces of signals is": model(length="L"),
    "nobody has measured whether Conv of signals as images is faster": model("group = 1", weight=(32, 32, 1)),
    "group 16, kernel 3 or more": model(channels=16, weight=(64, 16, 3)),
    "it is not a constant": "main (float[N,32,L] x, float[32,32,3] w) => (float[N,32,M] y) { y = Conv (x, w) }",
    "a form for ONNX Runtime": (model(), {"target": "onnx"}),
    "it serves the CPU": (model(), {"options": Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))}),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


@pytest.mark.parametrize(
    ("channels", "weight", "group"),
    [(32, (8, 32, 3), 1), (24, (24, 1, 3), 24), (1, (24, 1, 64), 1), (32, (32, 4, 3), 8)],
)
def test_keeps_channels_that_fill_no_blocks(channels: int, weight: tuple[int, int, int], group: int) -> None:
    text = model(f"group = {group}", channels=channels, weight=weight)
    check_keeps(PASS, text, "the channels fill no blocks")


def test_keeps_a_short_kernel_of_one_channel() -> None:
    text = model("group = 1", channels=1, weight=(32, 1, 63))
    check_keeps(
        PASS, text, "but with channels 1, groups 2 or more, kernel 2 or more or channels 1, groups 1, kernel 64"
    )


@pytest.mark.parametrize(("outputs", "length"), [(16, 1960), (32, 330), (96, 110)])
def test_work_that_two_threads_divide(outputs: int, length: int) -> None:
    """The blocked kernel gives a thread 64 channels of a row: of two, one has everything, or two thirds."""
    check_rewrites(PASS, model(weight=(outputs, 32, 3), length=str(length - 10)), ops=IMAGE)
    longer = model(weight=(outputs, 32, 3), length=str(length + 10))
    check_keeps(PASS, longer, "Conv of pieces of signals is")


@pytest.mark.parametrize("outputs", [80, 96, 160, 192])
def test_keeps_an_uneven_division(outputs: int) -> None:
    check_keeps(PASS, model(weight=(outputs, 32, 3), length="L"), "Conv of pieces of signals is")


LONG = {"channels": 16, "weight": (16, 16, 32)}
PIECES = {
    "no padding": (model("group = 1", **LONG, length="799"), 8),
    "padding": (model("pads = [16, 15]", **LONG, length="768"), 8),
    "several signals, perhaps": (model("pads = [15, 16]", **LONG, length="1000"), 8),
    "four pieces": (model("pads = [15, 16]", **LONG, length="500"), 4),
    "two pieces": (model("pads = [15, 16]", **LONG, length="502"), 2),
    "strides": (model("strides = [3], pads = [16, 15]", **LONG, length="1536"), 8),
    "dilations": (model("dilations = [2], pads = [31, 31]", **LONG, length="512"), 8),
    "one channel": (model("strides = [2]", channels=1, weight=(32, 1, 256), length="1022"), 4),
}


def is_little(_root: object, _form: object, *, multiplications: int, **_sizes: int) -> bool:
    return multiplications < 100_000


@pytest.mark.parametrize("case", PIECES)
def test_pieces_of_the_result_are_rows(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a long kernel the pieces of the signal, which overlap by it, are copied for little beside it."""
    monkeypatch.setattr("ortopt.transformers.lowering.onnxruntime_cpu.conv1d_conversion.is_faster", is_little)
    text, count = PIECES[case]
    ops = {"Conv": 1, "Unsqueeze": 1, "Slice": count, "Concat": 1, "Reshape": 1, "Pad": int("pads" in text)}
    check_rewrites(PASS, text, ops=ops)


def test_what_reads_padding_is_no_work() -> None:
    """The kernel has 64 places, of which each position reads 4 at most: the others are padding, which it skips."""
    text = model("pads = [8, 7]", channels=64, weight=(64, 64, 64), length="4")
    check_rewrites(PASS, text.replace("[8, 7]", "[32, 31]"), ops=IMAGE)


NO_PIECES = {
    "the result is in no equal pieces": model("pads = [15, 16]", **LONG, length="15001"),
    "Conv of pieces of signals is": model("pads = [10, 10]", channels=16, weight=(16, 16, 21), length="8000"),
    "its padding is not written out": model('auto_pad = "SAME_UPPER"', **LONG, length="8000"),
    "pads are no input in this opset": model("pads = [15, 16]", **LONG, length="8000"),
}


@pytest.mark.parametrize("because", NO_PIECES)
def test_keeps_where_pieces_do_not_pay(because: str) -> None:
    check_keeps(PASS, NO_PIECES[because], because, opset=10 if "opset" in because else 17)


def test_keeps_weights_that_are_not_finite() -> None:
    text = model("pads = [15, 16]", **LONG, length="8000")
    tensor = parse(text)
    weight = tensor.graph.initializers["w"]
    array = weight.const_value.numpy().copy()
    array[0, 0, 0] = np.inf
    weight.const_value = ir.tensor(array)
    check_keeps(PASS, tensor, "a weight is no finite number")


def test_keeps_a_residual() -> None:
    text = model('activation = "Relu", pads = [1, 1]', conv="com.microsoft.FusedConv", length="200")
    text = text.replace("[N,32,200] x)", "[N,32,200] x, float[N,32,200] z)").replace("(x, w, b)", "(x, w, b, z)")
    check_keeps(PASS, text, "it adds another value")


def test_one_thread_divides_nothing() -> None:
    check_rewrites(PASS, model(length="L"), ops=IMAGE, options=Options(for_threads=1))
