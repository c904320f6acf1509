"""Small groups of a convolution are merged to blocks, where that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ortopt.options import March
from ortopt.testing import all_fusions, check_keeps, check_rewrites
from ortopt.transformers.lowering.onnxruntime_cpu import conv_block_conversions as channel_blocks

PASS = "grouped_conv_merging"
NATIVE = replace(all_fusions(), march=March.NATIVE)


@pytest.fixture(autouse=True)
def _blocks_of_16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_blocks, "channel_block", lambda: 16)


def model(
    groups: int = 8,
    channels: int = 4,
    *,
    outputs: int | None = None,
    attributes: str = "",
    conv: str = "Conv",
    between: str = "c = Relu (p)",
    bias: bool = True,
    more: str = "",
) -> str:
    """A convolution with groups behind another one."""
    width = groups * channels
    outputs = width if outputs is None else outputs
    numbers = ",".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(outputs * channels * 9))
    points = ",".join(str(0.1 * (place % 5 - 2)) for place in range(width * 2))
    numbers_of_bias = ",".join(str(0.5 * place) for place in range(outputs))
    offsets = f", float[{outputs}] b = {{{numbers_of_bias}}}" if bias else ""
    return f"""main (float[2,2,6,7] x) => (float[A,B,C,D] y) <float[{width},2,1,1] u = {{{points}}},
        float[{outputs},{channels},3,3] w = {{{numbers}}}{offsets}> {{
        p = Conv (x, u)
        {between}
        y = {conv} <group = {groups}, pads = [1, 1, 1, 1]{attributes}> (c, w{", b" if bias else ""}{more})
    }}"""


REWRITTEN = {
    "groups of 4": model(),
    "groups of 2": model(16, 2),
    "groups of 8": model(4, 8),
    "one block": model(4, 4),
    "strides": model(attributes=", strides = [2, 2]"),
    "no bias": model(bias=False),
    "two operations between": model(between="r = Relu (p) c = Add (r, p)"),
    "with its activation": model(attributes=', activation = "Relu"', conv="com.microsoft.FusedConv"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    after = check_rewrites(PASS, REWRITTEN[name], options=NATIVE)
    root = after.graph.node(-1)
    assert root.inputs[1] is not None
    assert root.inputs[1].shape is not None
    assert root.inputs[1].shape.numpy()[1] == 16
    assert root.attributes["group"].as_int() == root.inputs[1].shape.numpy()[0] // 16


def test_what_is_not_finite_stays_in_its_block() -> None:
    x = np.ones((2, 2, 6, 7), np.float32)
    x[0, 1, 2, 3] = np.inf
    check_rewrites(PASS, model(), options=NATIVE, inputs={"x": x})


KEPT: dict[str, tuple[str, str]] = {
    "no groups": (model(1, 8), "groups fill blocks, or are of one channel"),
    "single channels": (model(16, 1), "groups fill blocks, or are of one channel"),
    "whole blocks": (model(2, 16), "groups fill blocks, or are of one channel"),
    "groups of 3": (model(8, 3), "fill no blocks together"),
    "too few groups": (model(6, 4), "fill no blocks together"),
    "more outputs": (model(outputs=64), "other numbers of outputs"),
    "no convolution before": (model(between="c = Softmax (p)"), "behind no convolution"),
    "a sum": (
        model(conv="com.microsoft.FusedConv", between="c = Relu (p)", more=", c"),
        "it adds another value",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    before, because = KEPT[name]
    check_keeps(PASS, before, because, options=NATIVE)


@pytest.mark.parametrize(("native", "block"), [(False, 16), (True, 8), (True, None)])
def test_where_blocks_are_others_it_stays(native: bool, block: int | None, monkeypatch: Any) -> None:
    monkeypatch.setattr(channel_blocks, "channel_block", lambda: block)
    check_keeps(
        PASS, model(), "blocks are of 16 channels", options=replace(NATIVE, march=March.NATIVE if native else March.ANY)
    )
