"""How many channels are computed at once follows from the processor's instructions."""

from __future__ import annotations

import pytest

from ortopt.system import processor
from ortopt.transformers.lowering.onnxruntime_cpu import conv_block_conversions


@pytest.mark.parametrize(
    ("is_x86", "features", "block"),
    [
        (True, {"avx2", "avx512f", "avx512bw"}, 16),
        (True, {"avx2", "avx512"}, 8),
        (True, {"avx"}, None),
        (False, {"avx512f"}, None),
        (True, set(), None),
    ],
)
def test_blocks_follow_from_instructions(
    is_x86: bool, features: set[str], block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "is_x86", lambda: is_x86)
    monkeypatch.setattr(processor, "features", lambda: frozenset(features))
    assert conv_block_conversions.channel_block() == block
