"""Run one command and print its exit status, seconds and peak memory as JSON: `launch.py TIMEOUT STDERR COMMAND...`.

A process of its own, and a small one: the kernel counts the memory of whoever starts a process into that process' peak,
so a benchmark that has models loaded must not be the one that starts what it measures. Imports the standard library
only, and runs under `python -I -S`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType


def main(timeout: float, errors: str, command: list[str]) -> None:
    """Run `command` without output, its stderr going to the file `errors`; after `timeout` seconds it is killed."""
    timed_out = False
    with Path(errors).open("wb") as file:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True
        )

        def kill(_signal: int, _frame: FrameType | None) -> None:
            nonlocal timed_out
            timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        signal.signal(signal.SIGALRM, kill)
        signal.setitimer(signal.ITIMER_REAL, timeout)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        signal.setitimer(signal.ITIMER_REAL, 0)
    child.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for: subprocess need not
    unit = 1 if sys.platform == "darwin" else 1024
    peak = usage.ru_maxrss * unit
    print(json.dumps({"status": child.returncode, "seconds": seconds, "peak": peak, "timed_out": timed_out}))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], sys.argv[3:])
