"""What all tests of all passes have in common."""

from __future__ import annotations

import pytest

from ortopt.transformers.lowering.onnxruntime_cpu import conv_block_conversions


@pytest.fixture(autouse=True)
def _blocks_of_16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes that ask for this processor, with --march native, are tried on every processor."""
    monkeypatch.setattr(conv_block_conversions, "channel_block", lambda: 16)
