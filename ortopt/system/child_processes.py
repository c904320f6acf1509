"""Child processes: how ``python -m MODULE`` is started and ended, and how it and its parent exchange bytes.

The parent starts a child with `spawn`, or with `run` where it waits for one answer; a `Conversation` has many, and
`end` ends what `spawn` started. A child calls `end_with` first, so that it does not outlive its parent, and
`limit_memory` where it may take too much.

ONNX Runtime, its providers and their drivers print to standard output when they like, and what Python loads at its
start may, too. So a child that answers its parent takes the descriptors of standard input and output for itself
(`take_streams`), and writes a `GREETING` where its answers begin: what was printed before it is skipped, and what is
printed later is discarded.

Only the standard library is imported here: a child must start quickly, and so must the command that starts one early.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from ortopt.cancellation import BETWEEN_LOOKS, NEVER, CancellationToken
from ortopt.system.threads import BackgroundThread, Signal

if TYPE_CHECKING:
    import subprocess

GREETING: Final = b"\x1eortopt answers from here on\x1e\n"
"""Ends the line after which all is the child's own."""

NO_TELEMETRY: Final = ("ORT_DISABLE_TELEMETRY", "1")
"""Variable of the environment, read by ONNX Runtime when it is imported: nothing is stored in the home folder."""

_BETWEEN_PARENT_CHECKS: Final = 0.5  # seconds

_OURS: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"})
"""What tells a Python where its packages are."""

# Of this environment only ortopt itself is found: its other packages may not fit the other Python.
_ELSEWHERE: Final = """
import sys
sys.path[:] = filter(None, sys.path)  # not the current folder
import importlib.util, os, runpy
folder, module = sys.argv[1:3]
file = os.path.join(folder, "__init__.py")
spec = importlib.util.spec_from_file_location("ortopt", file, submodule_search_locations=[folder])
sys.modules["ortopt"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
sys.argv[1:3] = []
sys.dont_write_bytecode = True
runpy.run_module(module, run_name="__main__", alter_sys=False)
"""


# -- in the parent


class Outcome(NamedTuple):
    """How a child process ended.

    Attributes:
        answer: What it had answered until then.
        status: Its exit status, negative for a signal; None where it was ended because it took too long.
    """

    answer: bytes
    status: int | None


def spawn(
    module: str,
    *arguments: str,
    connected: bool = True,
    interpreter: str | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Start ``python -m MODULE PARENT ARGUMENTS``, which imports what this process would import.

    Args:
        module: The child's module; it is given the id of this process (`end_with`) before the other arguments.
        arguments: Further arguments.
        connected: Whether standard input and output are pipes to this process; otherwise both are the null device.
        interpreter: Another Python, which imports ortopt from here and all else from its own environment.
        variables: Of its environment, beside those of this process.

    Raises:
        OSError: The interpreter cannot be started.
    """
    import subprocess  # which children need not

    stream = subprocess.PIPE if connected else subprocess.DEVNULL
    if interpreter is None:
        program = [sys.executable, "-P", "-m", module]  # not from the current folder: an archive's `nt.py` would run
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path)}
    else:
        program = [interpreter, "-c", _ELSEWHERE, str(Path(__file__).resolve().parents[1]), module]
        environment = {name: value for name, value in os.environ.items() if name not in _OURS}
    environment.setdefault(*NO_TELEMETRY)
    environment |= variables
    return subprocess.Popen(
        [*program, str(os.getpid()), *arguments],
        env=environment,
        stdin=stream,
        stdout=stream,
        stderr=subprocess.DEVNULL,
    )


def run(
    module: str,
    *arguments: str,
    request: bytes | None = None,
    seconds: float,
    token: CancellationToken = NEVER,
    interpreter: str | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Outcome:
    """Start a child, send it a request, and wait for its end; it is ended, at the latest, when this returns.

    Args:
        module: As `spawn` takes it.
        arguments: As `spawn` takes them.
        request: What the child reads from its standard input; None leaves it unconnected.
        seconds: Seconds after which it is ended.
        token: Cancellation token.
        interpreter: As `spawn` takes it.
        variables: As `spawn` takes them.

    Raises:
        OptimizationCancelled: The token was set.
        OSError: No process can be started.
    """
    import subprocess

    deadline = time.monotonic() + seconds
    pause = math.inf if token is NEVER else BETWEEN_LOOKS
    with spawn(
        module, *arguments, connected=request is not None, interpreter=interpreter, variables=variables
    ) as child:
        try:
            while True:
                token.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    child.kill()
                    output, _ = child.communicate()
                    return Outcome(answers_in(output or b""), None)
                try:
                    output, _ = child.communicate(request, min(pause, left))
                except subprocess.TimeoutExpired:
                    request = None  # it is on its way
                else:
                    return Outcome(answers_in(output or b""), child.returncode)
        finally:
            child.kill()  # its answer is of no use any more


def end(process: subprocess.Popen[bytes]) -> None:
    """End a child process, wait for its end, and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was not written has nowhere to go
                stream.close()


class Conversation:
    """Requests to a child that `spawn` has started, and its answers, each a line, in their order.

    Args:
        process: The child.

    Attributes:
        process: The child.
        is_late: Whether it was ended because an answer took too long.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.is_late = False
        self._greeted = False

    def ask(self, request: Any) -> None:
        """Send a request.

        Args:
            request: What json can write.
        """
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has died: whoever waits for its answer learns of it
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def answer(self, seconds: float | None, token: CancellationToken = NEVER) -> bytes:
        """Wait for the next answer; what has come of it where the child died.

        Args:
            seconds: Seconds after which the child is ended; None waits for ever.
            token: Cancellation token; the child is ended when it is set.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        pause = math.inf if token is NEVER else BETWEEN_LOOKS
        answered = Signal()

        def end_in_time() -> None:
            while not answered.wait(min(pause, end - time.monotonic())):
                if token.is_cancelled or time.monotonic() >= end:
                    self.is_late = True
                    self.process.kill()
                    return

        BackgroundThread(end_in_time, "ortopt-patience")
        try:
            assert self.process.stdout is not None
            self._greeted = self._greeted or skip_to_answers(self.process.stdout)
            return self.process.stdout.readline()
        finally:
            answered.set()

    def death(self) -> str:
        """Wait for the end of the child: the name of the signal that ended it, or its status."""
        status = self.process.wait()
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
        return f"status {status}"


def skip_to_answers(stream: IO[bytes]) -> bool:
    """Read what was printed before a child took its descriptors; whether it has taken them."""
    while line := stream.readline():
        if line.endswith(GREETING):
            return True
    return False


def answers_in(output: bytes) -> bytes:
    """What a child that has ended answered, of all that came by its standard output."""
    return output.partition(GREETING)[2]


# -- in the child


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """The parent's requests, and where answers go; nothing else in this process reads or writes them from now on."""
    requests, answers = (os.dup(number) for number in (0, 1))  # not inherited by processes that a library starts
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    os.close(nothing)
    own = os.fdopen(answers, "wb")
    own.write(GREETING)
    own.flush()
    return os.fdopen(requests, "rb"), own


def end_with(parent: int) -> None:
    """End this process when its parent has gone: a model may run for ever.

    Args:
        parent: The id of the process that started this one.
    """
    if sys.platform == "win32" or os.getppid() != parent:  # there, or here, another process stands in between
        return

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(_BETWEEN_PARENT_CHECKS)
        os._exit(1)

    BackgroundThread(wait, "ortopt-parent")


def limit_memory(*, space: int | None = None, data: int | None = None) -> None:
    """Limit the memory of this process, where the system can do that, and let it write no core file.

    Args:
        space: Bytes of address space, mapped files and libraries included.
        data: Bytes of private writable memory.
    """
    try:
        import resource
    except ImportError:  # Windows; the time limit holds there too
        return
    for kind, nbytes in ((resource.RLIMIT_AS, space), (resource.RLIMIT_DATA, data), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        if nbytes is not None:
            resource.setrlimit(kind, (nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard), hard))
