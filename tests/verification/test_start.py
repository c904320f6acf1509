"""The process that verifies starts before it is known for what, and ends where nobody wants it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ortopt.system.child_processes import end
from ortopt.testing import parse
from ortopt.verification import start as verification_start
from ortopt.verification.verify import verify

MODEL = "main (float[N,4] x) => (float[N,4] y) { y = Relu (x) }"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Those that have been started."""
    found: list[subprocess.Popen[bytes]] = []
    start = verification_start._start

    def counted() -> subprocess.Popen[bytes]:
        found.append(start())
        return found[-1]

    monkeypatch.setattr(verification_start, "_start", counted)
    return found


def test_the_first_who_asks_gets_the_one_that_waits(started: list[subprocess.Popen[bytes]]) -> None:
    with verification_start.early():
        (early,) = started
        assert verify(parse(MODEL), parse(MODEL)).status == "verified"
        assert started == [early]
        assert early.poll() is not None
        assert verify(parse(MODEL), parse(MODEL)).status == "verified"
        assert len(started) == 2


def test_it_ends_if_nobody_asks(started: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(ZeroDivisionError), verification_start.early():
        raise ZeroDivisionError
    (early,) = started
    assert early.returncode is not None
    assert early.stdin is not None
    assert early.stdin.closed


def test_one_that_has_died_meanwhile_is_not_used(started: list[subprocess.Popen[bytes]]) -> None:
    with verification_start.early():
        started[0].kill()
        started[0].wait()
        assert verify(parse(MODEL), parse(MODEL)).status == "verified"
    assert len(started) == 2


def test_threads_that_ask_at_once_get_one_each(started: list[subprocess.Popen[bytes]]) -> None:
    found: list[subprocess.Popen[bytes]] = []
    with verification_start.early():
        threads = [threading.Thread(target=lambda: found.append(verification_start.process())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for process in found:
        end(process)
    assert len({process.pid for process in found}) == len(started) == 4


def test_what_starts_it_has_imported_nothing_large() -> None:
    """Else it would start late."""
    code = "import sys, ortopt.cli.optimize, ortopt.verification.start; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "onnx", "onnx_ir", "onnxruntime"} & set(done.stdout.split())
