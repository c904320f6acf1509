"""What is known of the processor."""

import platform

import pytest

from ortopt.system import processor


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [
        ("x86_64", {"avx2"}, True),
        ("AMD64", {"avx2", "avx512f"}, True),
        ("x86_64", {"avx2", "avx512_vnni"}, False),
        ("x86_64", {"sse4_1"}, False),
        ("x86_64", set(), False),
        ("aarch64", {"avx2"}, False),
    ],
)
def test_saturates_products(monkeypatch: pytest.MonkeyPatch, machine: str, flags: set[str], saturates: bool) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(processor, "features", lambda: frozenset(flags))
    assert processor.saturates_products() is saturates
