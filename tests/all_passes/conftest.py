"""What all tests of all passes have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processors import pretended


@pytest.fixture(autouse=True)
def _on_one_processor() -> Iterator[None]:
    """Passes that ask for this processor, with --march native, are tried on every processor."""
    with pretended():
        yield
