from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.chromium import Chromium, find


@pytest.fixture(scope="session")
def _browser() -> Iterator[Chromium]:
    path = find()
    if path is None:
        pytest.skip("there is no Chromium here (ORTOPT_CHROMIUM names one)")
    browser = Chromium(path)
    yield browser
    browser.close()


@pytest.fixture
def browser(_browser: Chromium) -> Iterator[Chromium]:
    """A browser of desktop size; a page that complains, asks for anything or opens a dialog fails the test."""
    for told in (_browser.problems, _browser.dialogs, _browser.requests):
        told.clear()
    _browser.size(1300, 850)
    _browser.prefer()
    yield _browser
    assert _browser.problems == []
    assert _browser.dialogs == []
    assert _browser.requests == []


@pytest.fixture
def opened(browser: Chromium, tmp_path: Path) -> Callable[[str], float]:
    """Opens a page from its text."""

    def open_(page: str) -> float:
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        return browser.open(path)

    return open_
