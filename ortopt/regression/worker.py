"""The process in which models are optimized and verified, one after the other: a crash costs the model that it is at.

``python -m ortopt.regression.worker PARENT`` reads a JSON object a line (see `ortopt.regression.model_run.run`) and
answers each with one.
"""

from __future__ import annotations

import gc
import json
import signal
import sys

from msgspec import structs

from ortopt._deferred_sympy import defer_sympy
from ortopt.system.child_processes import end_with, take_streams


def serve() -> None:
    """Answer orders until there are no more."""
    requests, answers = take_streams()
    end_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the parent ends this one
    defer_sympy()
    from ortopt import registry
    from ortopt.regression.model_run import run

    registry.installed()  # all passes are imported: no model pays for it
    gc.collect()
    gc.freeze()
    gc.disable()  # a model's graph makes millions of objects and little garbage: it is collected between models
    for line in requests:
        answer = run(json.loads(line))
        answers.write(json.dumps(structs.asdict(answer), default=str).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    serve()
