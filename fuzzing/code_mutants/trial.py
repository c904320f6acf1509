"""One mutant, tried: a forked process puts the changed code into the live function and runs tests until one fails."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from fuzzing.code_mutants.mutants import ROOT, Mutant, code_of, sources

MAX_TESTS: Final = 20
"""Tests that are run for a mutant at once: the quickest of each file first."""

_MAX_SECONDS: Final = 90.0

_INVALID: Final = 100
"""Exit code of a mutant whose code does not fit into the function."""

_ARGUMENTS: Final = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")

KILLED, SURVIVED, INVALID = "killed", "survived", "invalid"

_NO_TESTS: Final = {4: INVALID, 5: INVALID}
"""What pytest ends with where it does not know a test, or has none."""


def load() -> None:
    """Import the product and pytest once; every trial is a copy of this process."""
    import onnxruntime  # noqa: F401 - imported for the children
    import pytest  # noqa: F401

    for path in sources():
        if path.name != "__main__.py":
            with contextlib.suppress(ImportError):  # what an optional dependency would be needed for
                importlib.import_module(_module(path.relative_to(ROOT)))


def in_order(tests: Sequence[tuple[float, str]]) -> list[str]:
    """The quickest test of each file, then the others, the quickest first."""
    first: dict[str, tuple[float, str]] = {}
    for test in tests:
        first.setdefault(test[1].partition("::")[0], test)
    return [name for _, name in dict.fromkeys([*first.values(), *tests])]


class Trials:
    """Tries mutants one after the other.

    A test that fails without any mutant, in a process like those of the trials, proves nothing: a test is asked for
    that when it first fails.

    Args:
        answer: A file to write to.
    """

    def __init__(self, answer: Path) -> None:
        self._answer = answer
        self._proves: dict[str, bool] = {}

    def tried(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """Whether one of some tests notices a mutant; `MAX_TESTS` at once, until one does.

        Args:
            mutant: The mutant.
            tests: Names of tests, as pytest takes them.

        Returns:
            ``killed`` also if the process crashes or does not end; ``invalid`` if the mutant cannot be made.
        """
        outcomes = []
        for begin in range(0, max(len(tests), 1), MAX_TESTS):
            outcomes.append(self._tried(mutant, tests[begin : begin + MAX_TESTS]))
            if outcomes[-1] == KILLED:
                return KILLED
        return SURVIVED if SURVIVED in outcomes else INVALID

    def _tried(self, mutant: Mutant, tests: Sequence[str]) -> str:
        while reliable := [name for name in tests if self._proves.get(name, True)]:
            outcome, failing = self._run(mutant, reliable)
            if outcome != KILLED or failing is None:
                return outcome
            if failing not in self._proves:
                self._proves[failing] = self._run(None, [failing])[0] == SURVIVED
            if self._proves[failing]:
                return KILLED
        return INVALID

    def _run(self, mutant: Mutant | None, tests: Sequence[str]) -> tuple[str, str | None]:
        """The outcome, and the test that failed, if one did."""
        self._answer.write_text("", encoding="utf-8")
        child = os.fork()
        if not child:
            self._be(mutant, tests)
        until = time.monotonic() + _MAX_SECONDS
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                outcome = {0: SURVIVED, _INVALID: INVALID, **_NO_TESTS}.get(code, KILLED)
                return outcome, self._answer.read_text(encoding="utf-8") or None
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return KILLED, None

    def _be(self, mutant: Mutant | None, tests: Sequence[str]) -> None:
        """Never returns: this process is the mutant's."""
        code = 3
        try:
            _detach()
            import pytest

            try:
                if mutant is not None:
                    _install(mutant)
            except (LookupError, AttributeError, ValueError, SyntaxError):
                os._exit(_INVALID)
            code = int(pytest.main(["-x", *_ARGUMENTS, *tests], plugins=[_Failure(self._answer)]))
        finally:
            os._exit(code)


class _Failure:
    """A plugin of pytest that writes down which test fails."""

    def __init__(self, answer: Path) -> None:
        self._answer = answer

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._answer.write_text(report.nodeid, encoding="utf-8")


def _detach() -> None:
    """A process group of its own, so that all of it can be killed; and silence."""
    os.setsid()
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)


def _install(mutant: Mutant) -> None:
    found: Any = importlib.import_module(_module(Path(mutant.path)))
    for name in mutant.address.function.split("."):
        found = found.__dict__[name] if isinstance(found, type) else getattr(found, name)
    found = getattr(found, "__func__", None) or getattr(found, "fget", None) or getattr(found, "func", None) or found
    while not isinstance(found, FunctionType):
        found = found.__wrapped__
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    found.__code__ = code_of(mutant)


def _module(relative: Path) -> str:
    parts = relative.with_suffix("").parts
    prefix = () if parts[0] == "ortopt" else ("ortopt",)
    return ".".join([*prefix, *(part for part in parts if part != "__init__")])
