"""A convolution with few outputs computes four pixels at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ortopt.options import March
from ortopt.system import processor
from ortopt.testing import all_fusions, check_keeps, check_rewrites
from tests.passes import example_files

PASS = "few_output_conv_unrolling"
NATIVE = replace(all_fusions(), march=March.NATIVE)


@pytest.mark.parametrize("title", ["eight outputs of few channels", "three outputs of few channels"])
def test_blocks_of_16_on_request(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = example_files.text(PASS, title)
    monkeypatch.setattr(processor, "channel_block", lambda: 16)
    check_rewrites(PASS, before, ops={"Conv": 1, "DepthToSpace": 1}, options=NATIVE)
    monkeypatch.setattr(processor, "channel_block", lambda: 8)
    check_keeps(PASS, before, options=NATIVE)
