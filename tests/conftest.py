"""What tests of several folders share."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from ortopt.verification.runner import ModelRunner


def pytest_collection_finish() -> None:
    """Keep the collected tests, half a million objects, out of the garbage collections that tests and runs ask for."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def models_run_here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Models are compared in this process, ten times as fast; `processes` marks tests of the process of their own."""
    if request.node.get_closest_marker("processes") is not None:
        return
    made = ModelRunner.__init__

    def here(self: ModelRunner, *arguments: Any, **more: Any) -> None:
        made(self, *arguments, **{**more, "in_process": "runtime" not in more})

    monkeypatch.setattr(ModelRunner, "__init__", here)
