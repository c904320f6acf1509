"""A plugin of pytest: which tests call which functions of the product, and how long each test takes.

``python -m pytest -p fuzzing.code_mutants.reach`` writes one file for each process below ``fuzz-out/code-mutants``.
Only what a test calls in its own process counts. ``sys.monitoring``, which is new in Python 3.12, makes this cheap.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Final

import pytest

from fuzzing.code_mutants.mutants import ROOT

FOLDER: Final = ROOT / "fuzz-out" / "code-mutants"

_TOOL: Final = 3
"""No debugger, coverage or profiler: tests that profile use the id of these."""

_MAX_TESTS: Final = 400
"""Tests that are kept for each function: the quickest."""


class _Recorder:
    def __init__(self) -> None:
        self.tests: dict[str, list[tuple[float, str]]] = {}
        self._called: set[CodeType] = set()
        monitoring = sys.monitoring  # type: ignore[attr-defined, unused-ignore]  # from Python 3.12 on
        self._monitoring: Any = monitoring
        monitoring.use_tool_id(_TOOL, "code-mutants")
        monitoring.register_callback(_TOOL, monitoring.events.PY_START, self._start)

    def _start(self, code: CodeType, _: int) -> object:
        self._called.add(code)
        return self._monitoring.DISABLE  # until the next test

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        monitoring = self._monitoring
        self._called.clear()
        monitoring.restart_events()
        monitoring.set_events(_TOOL, monitoring.events.PY_START)
        begun = time.perf_counter()
        yield
        seconds = round(time.perf_counter() - begun, 3)
        monitoring.set_events(_TOOL, 0)
        for key in {key for code in self._called if (key := _key(code))}:
            self.tests.setdefault(key, []).append((seconds, item.nodeid))

    def pytest_sessionfinish(self) -> None:
        if not self.tests:
            return
        FOLDER.mkdir(parents=True, exist_ok=True)
        kept = {key: sorted(tests)[:_MAX_TESTS] for key, tests in self.tests.items()}
        (FOLDER / f"reach-{os.getpid()}.json").write_text(json.dumps(kept), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Record, in a process that runs tests itself."""
    if not config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())


def reached() -> dict[tuple[str, str], list[tuple[float, str]]]:
    """The tests of each function, the quickest first, by the function's file and qualified name."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for path in sorted(FOLDER.glob("reach-*.json")):
        for key, tests in json.loads(path.read_text(encoding="utf-8")).items():
            file, _, name = key.partition(":")
            found.setdefault((file, name), []).extend((seconds, test) for seconds, test in tests)
    return {key: sorted(tests) for key, tests in found.items()}


def _key(code: CodeType) -> str | None:
    """The file and the outermost function of some code, if it is the product's."""
    path = Path(code.co_filename)
    if not path.is_absolute() or not path.is_relative_to(ROOT):
        return None
    parts = path.relative_to(ROOT).parts
    if parts[:2] == ("ortopt", "transformers"):  # the link of a checkout
        parts = parts[1:]
    if parts[0] not in {"ortopt", "transformers"} or code.co_qualname.startswith("<"):
        return None
    return f"{'/'.join(parts)}:{code.co_qualname.partition('.<locals>')[0]}"
