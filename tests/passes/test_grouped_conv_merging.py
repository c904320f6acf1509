"""Small groups of a convolution are merged to blocks, where that is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ortopt.options import March
from ortopt.system import processor
from ortopt.testing import all_fusions, check_keeps, parse, run
from tests.passes import example_files

PASS = "grouped_conv_merging"
NATIVE = replace(all_fusions(), march=March.NATIVE)
MERGED = [example for example in example_files.read(PASS) if example.group == "groups become blocks"]


@pytest.mark.parametrize("text", [example.model for example in MERGED], ids=[example.title for example in MERGED])
def test_groups_fill_blocks(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "channel_block", lambda: 16)
    model = parse(text)
    assert run(PASS, model, options=NATIVE)[0]
    root = model.graph.node(-1)
    assert root.inputs[1] is not None and root.inputs[1].shape is not None
    outputs, channels, *_ = root.inputs[1].shape.numpy()
    assert (channels, root.attributes["group"].as_int()) == (16, outputs // 16)


@pytest.mark.parametrize(("march", "block"), [(March.ANY, 16), (March.NATIVE, 8), (March.NATIVE, None)])
def test_where_blocks_are_others_it_stays(march: March, block: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "channel_block", lambda: block)
    check_keeps(PASS, MERGED[0].model, "blocks are of 16 channels", options=replace(NATIVE, march=march))
