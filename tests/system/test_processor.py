"""What is known of the processor."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortopt.system import processor


@pytest.fixture(autouse=True)
def _unknown() -> Iterator[None]:
    """What was read before is forgotten, and what a test reads too."""
    processor.features.cache_clear()
    yield
    processor.features.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, machine: str, flags: str) -> None:
    file = folder / "cpuinfo"
    file.write_text(f"processor : 0\nflags\t\t: {flags}\n", encoding="utf-8")
    monkeypatch.setattr(processor, "CPUINFO", file)
    monkeypatch.setattr(platform, "machine", lambda: machine)


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [
        ("x86_64", "avx2", True),
        ("AMD64", "avx2 avx512f", True),
        ("x86_64", "avx2 avx512_vnni", False),
        ("x86_64", "sse4_1", False),
        ("x86_64", "", False),
        ("aarch64", "avx2", False),
    ],
)
def test_saturates_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, flags: str, saturates: bool
) -> None:
    pretend(monkeypatch, tmp_path, machine, flags)
    assert processor.saturates_products() is saturates


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
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, flags: str, block: int | None
) -> None:
    pretend(monkeypatch, tmp_path, machine, flags)
    assert processor.channel_block() == block


def test_without_a_list_of_instructions_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")
    assert processor.features() == frozenset()
    assert processor.channel_block() is None
