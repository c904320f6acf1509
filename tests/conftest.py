"""What tests of several folders share."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ortopt.measurement import asking, child
from ortopt.system import child_processes
from ortopt.verification.runner import ModelRunner


def pytest_collection_finish() -> None:
    """Keep the collected tests, half a million objects, out of the garbage collections that tests and runs ask for."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def models_run_here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Models are compared and measured in this process; `processes` marks tests of the process of their own."""
    if request.node.get_closest_marker("processes") is not None:
        return
    made = ModelRunner.__init__

    def here(self: ModelRunner, *arguments: Any, **more: Any) -> None:
        made(self, *arguments, **{**more, "in_process": "runtime" not in more})

    def measured(module: str, *, request: bytes, variables: Mapping[str, str], **more: Any) -> tuple[bytes, int | None]:
        if variables:  # of a process's environment
            return child_processes.run(module, request=request, variables=variables, **more)
        return json.dumps(child.answer(json.loads(request))).encode(), 0

    monkeypatch.setattr(ModelRunner, "__init__", here)
    monkeypatch.setattr(asking, "child_processes", SimpleNamespace(run=measured))
