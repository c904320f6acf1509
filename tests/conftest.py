"""What tests of several folders share."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ortopt.evaluation import sessions
from ortopt.measurement import asking, child
from ortopt.system import child_processes
from ortopt.verification.runner import ModelRunner

IN_A_ROW = 12
"""Number of tests of a file that a worker gets at once: the work of handing them out grows with the parts' number."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have one worker run the tests of a pass in tests/all_passes, which share its examples, and others in rows."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    seen: Counter[Path] = Counter()
    for item in items:
        if item.get_closest_marker("xdist_group") is not None:
            continue
        told = getattr(item, "callspec", None)
        if item.path.parent.name == "all_passes" and told is not None and "name" in told.params:
            group = told.params["name"]
        else:
            group = f"{item.path.relative_to(item.config.rootpath)} {seen[item.path] // IN_A_ROW}"
            seen[item.path] += 1
        item.add_marker(pytest.mark.xdist_group(group))


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
    # a pool that sessions share is that of all sessions of the process, from then on
    monkeypatch.setattr(sessions, "use_shared_threads", lambda options, threads: None)
    monkeypatch.setattr(asking, "child_processes", SimpleNamespace(run=measured))
