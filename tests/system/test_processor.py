"""What is known of the processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortopt.system import processor


@pytest.mark.parametrize(
    ("machine", "flags", "block"),
    [
        ("x86_64", "fpu avx2 avx512f avx512bw", 16),
        ("AMD64", "fpu avx2 avx512", 8),
        ("x86_64", "fpu avx", None),
        ("aarch64", "avx512f", None),
    ],
)
def test_blocks_follow_from_instructions(
    machine: str, flags: str, block: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor : 0\nflags\t\t: {flags}\n", encoding="utf-8")
    monkeypatch.setattr(processor, "CPUINFO", file)
    monkeypatch.setattr(processor.platform, "machine", lambda: machine)
    processor.channel_block.cache_clear()
    try:
        assert processor.channel_block() == block
    finally:
        processor.channel_block.cache_clear()


def test_without_a_list_of_instructions_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")
    processor.channel_block.cache_clear()
    try:
        assert processor.channel_block() is None
    finally:
        processor.channel_block.cache_clear()
