from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_SPEC = importlib.util.spec_from_file_location("ortopt_tests_chromium", Path(__file__).with_name("chromium.py"))
assert _SPEC
assert _SPEC.loader
chromium = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(chromium)


@pytest.fixture(scope="session")
def _browser() -> Iterator[Any]:
    path = chromium.find()
    if path is None:
        pytest.skip("there is no Chromium here (ORTOPT_CHROMIUM names one)")
    browser = chromium.Chromium(path)
    yield browser
    browser.close()


@pytest.fixture
def browser(_browser: Any) -> Iterator[Any]:
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
def opened(browser: Any, tmp_path: Path) -> Callable[[str], float]:
    """Opens a page from its text."""

    def open_(page: str) -> float:
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        seconds: float = browser.open(path)
        return seconds

    return open_
