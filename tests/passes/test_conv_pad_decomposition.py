"""Columns of zeros are written beside an image before a wide kernel reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortopt.options import Options
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse, run
from tests.passes.convolutions import convolution
from tests.passes.tables import keeps

PASS = "conv_pad_decomposition"


def model(
    attributes: str = "pads = [0, 7, 0, 8]",
    *,
    image: str = "N,4,1,40",
    weight: tuple[int, ...] = (16, 4, 1, 16),
    **more: str,
) -> str:
    return convolution(attributes, image=image, weight=weight, **more)


NOT_MEASURED = "nobody has measured whether Conv behind a Pad"

REWRITTEN = {
    "a signal": model(),
    "a signal of any length": model(image="N,4,1,L"),
    "zeros on the left alone": model("pads = [0, 15, 0, 0]"),
    "strides": model("pads = [0, 6, 0, 6], strides = [1, 4]", image="N,4,1,100"),
    "an image keeps its rows of zeros": model("pads = [1, 4, 1, 4]", image="N,4,6,30", weight=(16, 4, 3, 9)),
    "groups": model("pads = [0, 7, 0, 8], group = 2", image="N,4,1,40", weight=(32, 2, 1, 16)),
    "an activation": model('activation = "Relu", pads = [0, 7, 0, 8]', conv="com.microsoft.FusedConv"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    check_rewrites(PASS, REWRITTEN[name], ops={"Pad": 1, "Unsqueeze": 1, "Squeeze": 1})


def test_rows_of_zeros_stay_with_the_convolution() -> None:
    after = check_rewrites(PASS, REWRITTEN["an image keeps its rows of zeros"])
    (conv,) = (node for node in after.graph if node.op_type == "Conv")
    assert list(conv.attributes["pads"].as_ints()) == [1, 0, 1, 0]


def test_onnxruntime_does_not_take_it_back(tmp_path: Path) -> None:
    after = parse(model())
    assert run(PASS, after)[0]
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    ort.InferenceSession(to_bytes(after), options, providers=["CPUExecutionProvider"])
    assert "Pad" in [node.op_type for node in onnx.load(tmp_path / "loaded.onnx").graph.node]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 200])
def test_signals_of_every_length(length: int) -> None:
    before, after = (parse(model(image="N,4,1,L")) for _ in range(2))
    assert run(PASS, after)[0]
    x = np.random.default_rng(0).standard_normal((2, 4, 1, length)).astype(np.float32)
    expected, got = (
        ort.InferenceSession(to_bytes(one), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for one in (before, after)
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


KEPT = {
    "no padding": ("no columns are padded", model("strides = [1, 1]")),
    "rows alone": ("no columns are padded", model("pads = [1, 0, 1, 0]", weight=(16, 4, 3, 16))),
    "a narrow kernel": (NOT_MEASURED, model("pads = [0, 3, 0, 4]", weight=(16, 4, 1, 8))),
    "a long signal": (NOT_MEASURED, model(image="N,4,1,400")),
    "a signal of zeros": (NOT_MEASURED, model(image="N,4,1,2")),
    "any length and a smaller kernel": (
        NOT_MEASURED,
        model("pads = [0, 4, 0, 4]", image="N,4,1,L", weight=(32, 4, 1, 9)),
    ),
    "single channels": (NOT_MEASURED, model("pads = [0, 7, 0, 8], group = 4", weight=(4, 1, 1, 16))),
    "few products": (NOT_MEASURED, model("pads = [0, 5, 0, 5]", weight=(8, 4, 1, 11))),
    "no image": ("the rank", model("pads = [15, 16]", image="N,4,40", weight=(16, 4, 32))),
    "gaps": ("its kernel has gaps", model("pads = [0, 15, 0, 15], dilations = [1, 2]")),
    "automatic padding": ("its padding is not written out", model('auto_pad = "SAME_UPPER"')),
    "double precision": ("single precision", model(dtype="double")),
    "an infinite weight": ("a weight is no finite number", model(number="inf")),
    "kept where pads are attributes": ("pads are no input in this opset", model(), {"opset": 10}),
    "kept for other runtimes": (None, model(), {"target": "onnx"}),
}


test_kept = keeps(PASS, KEPT)


def test_axes_are_attributes_in_older_opsets() -> None:
    check_rewrites(PASS, model(), ops={"Pad": 1, "Unsqueeze": 1, "Squeeze": 1}, opset=12)


def test_kept_with_a_summand() -> None:
    text = model('activation = "Relu", pads = [0, 7, 0, 8]', conv="com.microsoft.FusedConv")
    text = text.replace("] x)", "] x, float[N,16,1,40] z)").replace("(x, w, b)", "(x, w, b, z)")
    check_keeps(PASS, text, "it adds another value", options=Options())
