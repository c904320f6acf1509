"""Hashes of a few bytes."""

import hashlib

import pytest

from ortopt.system import digests


@pytest.mark.parametrize("content", [b"", b"abc", bytes(100_000)])
def test_as_hashlib_says(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert digests.sha256(content) == hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(digests, "_BUILT_IN", ("_no_such_module", "math"))
    assert digests.sha256(content) == hashlib.sha256(content).hexdigest()
