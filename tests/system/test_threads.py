"""Background threads start, or say that they cannot."""

from __future__ import annotations

import _thread
import ast
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ortopt
from ortopt.errors import OrtoptError
from ortopt.system import threads
from ortopt.system.threads import BackgroundThread, Signal
from ortopt.testing import parse
from ortopt.verification import verify

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[2] x) => (float[2] y) { y = Relu(x) }"""


def test_it_runs_and_ends() -> None:
    go = threading.Event()
    thread = BackgroundThread(go.wait, "waits")  # type: ignore[arg-type]  # what it returns is nobody's
    assert thread.is_alive
    assert not thread.join(0.01)
    assert thread in threads.running()
    go.set()
    assert thread.join(10)
    assert thread not in threads.running()


def test_one_that_raises_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)

    def fails() -> None:
        raise ValueError

    assert BackgroundThread(fails, "fails").join(10)


def test_a_signal_is_awaited_without_a_new_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks after a process would die of it where memory has run out."""
    given, never = Signal(), Signal()
    waits = BackgroundThread(lambda: assert_given(given), "waits")
    monkeypatch.setattr(threading, "_allocate_lock", _refuses)
    assert not never.wait(0.01)
    assert not never.wait(-1)
    assert waits.is_alive
    given.set()
    given.set()
    assert waits.join(10)
    assert given.wait(0)
    assert given.wait(0)


def assert_given(signal: Signal) -> None:
    assert signal.wait(10)


def _dies(_function: Callable[..., object], _arguments: tuple[object, ...]) -> int:
    """As where memory ends between the thread's creation and its first frame."""
    return _thread.start_new_thread(lambda: None, ())


def _refuses(*_: object) -> int:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("start", [_dies, _refuses])
def test_one_that_does_not_start_is_a_memory_error(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_PATIENCE", 0.05)
    monkeypatch.setattr(threads._thread, "start_new_thread", start)
    with pytest.raises(MemoryError):
        BackgroundThread(lambda: None, "never")


def test_one_that_starts_too_late_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], None]] = []
    did: list[str] = []

    def keep(function: Callable[[], None], _arguments: tuple[object, ...]) -> int:
        late.append(function)
        return 0

    monkeypatch.setattr(threads, "_PATIENCE", 0.05)
    monkeypatch.setattr(threads._thread, "start_new_thread", keep)
    with pytest.raises(MemoryError):
        BackgroundThread(lambda: did.append("work"), "late")
    late[0]()
    assert not did


def test_a_verification_whose_thread_dies_without_a_word_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for an answer that cannot come."""
    monkeypatch.setattr(verify.Reference, "_run_early", lambda *_: None)
    model = parse(MODEL)
    with verify.Reference(model) as reference:
        reference.begin(model)
        with pytest.raises(MemoryError):
            reference.compare(model)


def test_a_verification_without_threads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread can limit the time of an answer: that is an error, and no answer without a limit."""
    start = _thread.start_new_thread

    def first_only(function: Callable[..., object], arguments: tuple[object, ...]) -> int:
        monkeypatch.setattr(threads._thread, "start_new_thread", _refuses)
        return start(function, arguments)

    monkeypatch.setattr(threads._thread, "start_new_thread", first_only)
    with pytest.raises((MemoryError, OrtoptError)):
        ortopt.optimize(parse(MODEL))


def test_no_other_module_starts_threads() -> None:
    """Thread.start waits for ever where memory has run out. Pools are for the runtime's sessions alone."""
    root = Path(ortopt.__file__).parent
    starting, pools = {"Thread", "Timer", "start_new_thread"}, "ThreadPoolExecutor"
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path == root / "system" / "threads.py" or not any(name in text for name in (*starting, pools)):
            continue
        for node in ast.walk(ast.parse(text)):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            where = path.relative_to(root).as_posix()
            assert name not in starting, where
            assert name != pools or where.startswith("runtime/"), where
