"""One model optimized and verified: what comes of it, as an answer that json can write."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast

from msgspec import Struct

from ortopt import api
from ortopt.errors import InvalidModelError, OrtoptError, VerificationError
from ortopt.regression import facts as of_facts
from ortopt.regression.case import model_of
from ortopt.reporting import report
from ortopt.reporting.layers import first_in_words
from ortopt.serialization.load import SOURCE_KEY
from ortopt.serialization.save import INLINE_LIMIT, save
from ortopt.system import memory
from ortopt.system.files import temporary_folder
from ortopt.terminal_text import one_line
from ortopt.verification import start


class Answer(Struct):
    """What came of one model.

    Attributes:
        facts: The facts, as far as there are any.
        error: Why the run ended without a result; None where it has one.
        kind: The kind of the error; empty where there is none.
    """

    facts: of_facts.Facts
    error: str | None
    kind: str


BROKEN: Final = "broken"
DIFFERS: Final = "differs"
NO_MEMORY: Final = "no memory"
LATE: Final = "late"

RESULT: Final = "result.onnx"
"""The name of a result that is written: it stands in files of more than 2 GB."""


class HashingStream:
    """A stream that keeps the SHA-256 and the length of what is written, and nothing else."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.nbytes = 0

    def write(self, data: Any) -> int:
        """Take some bytes."""
        self._digest.update(data)
        length = memoryview(data).nbytes
        self.nbytes += length
        return length

    def flush(self) -> None:
        """Nothing is held back."""

    @property
    def digest(self) -> str:
        """The SHA-256 of what was written."""
        return self._digest.hexdigest()


def run(order: Mapping[str, Any]) -> Answer:
    """Optimize and verify one model; whatever goes wrong is an answer.

    Args:
        order: As `ortopt.regression.case.Case.order` makes it; ``memory`` is the limit in bytes, and ``result`` the
            file that the result is written to, if any.
    """
    facts: of_facts.Facts = {}
    started, before = time.perf_counter(), _quiet_memory()
    try:
        with memory.bounded(order.get("memory")):
            _run(order, facts)
    except MemoryError:
        return Answer(facts, "out of memory (see --max-memory)", NO_MEMORY)
    except VerificationError as error:
        return Answer(facts, one_line(error), DIFFERS)
    except OrtoptError as error:
        return Answer(facts, one_line(error), BROKEN)
    except Exception as error:  # a bug of ours, or of a plug-in's: it costs one model
        return Answer(facts, one_line(f"internal error: {type(error).__name__}: {error}"), BROKEN)
    facts["seconds"] = of_facts.rounded(time.perf_counter() - started)
    after = memory.of_process()
    if "VmHWM" in after and "VmRSS" in before:
        facts["memory"] = int(of_facts.rounded(max(0, after["VmHWM"] - before["VmRSS"])))
    return Answer(facts, None, "")


def _run(order: Mapping[str, Any], facts: of_facts.Facts) -> None:
    options = api.make_options(**order["options"])
    with start.early():
        source = model_of(order)
        run = api.new_optimization(source, options)
        origin = run.model.meta[SOURCE_KEY]
        facts["model"] = of_facts.hash_of([source, *map(Path, origin.data)])
        if order.get("hash", facts["model"]) != facts["model"]:
            raise InvalidModelError(f"{source}: it is not the model that was asked for")
        facts["options"] = of_facts.options_text(options)
        thoroughly: Literal["thorough", True] = "thorough" if order["thorough"] else True
        try:
            result = run.run(verify=thoroughly, inputs=_inputs(order), layers=order.get("layers", False))
        except VerificationError:
            facts |= _layers(run)
            raise
        data = report.as_dict(result, options=options)
        facts |= of_facts.facts_of(data, run.model, options)
        facts |= _written(run, order.get("result"))
        facts["reasons"] = _reasons(data)


def _layers(run: api.Optimization) -> of_facts.Facts:
    """Where a result begins to differ, if that was asked for: the figures, and a sentence."""
    found = None if run.verification is None else run.verification.layers
    if found is None:
        return {}
    figures = {name: value for name, value in report.plain(found).items() if name != "rows"}
    first = "none that could be compared" if found.first is None else first_in_words(found.first)
    return {"layers": figures, "reasons": [one_line(f"the first intermediate value that differs: {first}")]}


def _reasons(data: Mapping[str, Any]) -> list[str]:
    """What a reader wants to know beside the figures: why it could not be verified, what was repaired, what failed."""
    reasons = [report.describe_repair(repair) for repair in data["repairs"]]
    reasons += [f"{failure['pass']} failed: {failure['reason']}" for failure in data["failures"]]
    outcome = data["verification"]
    if outcome is not None and outcome["status"] != "verified":
        reasons.append(f"it could not be verified: {outcome['reason']}")
    if outcome is not None and outcome["not_as_deployed"]:
        reasons.append(outcome["not_as_deployed"])
    return [one_line(reason) for reason in reasons]


def _inputs(order: Mapping[str, Any]) -> Any:
    if order["inputs"] is not None:
        from ortopt.verification.inputs import read_inputs

        return read_inputs(order["inputs"])
    if order["zoo"] is not None:
        from ortopt import zoo

        return zoo.inputs(order["zoo"], sizes=api.make_options(**order["options"]).dims)
    return None


def _written(run: api.Optimization, path: str | None) -> of_facts.Facts:
    """The hash and the size of the result, which is written to a file if one is asked for.

    A result that fits into one file is hashed with its weights inside, wherever they go.
    """
    facts: of_facts.Facts = {}
    if path is not None:
        saved = save(run.model, Path(path))
        facts = {"result": of_facts.hash_of([Path(path)]), "size": saved.nbytes}
    if run.before.nbytes < INLINE_LIMIT // 2:
        stream = HashingStream()
        size = save(run.model, cast("BinaryIO", stream), external_data="inline").nbytes
        return {"result": stream.digest, "size": size}
    if path is not None:
        return facts
    with temporary_folder("ortopt-check-") as folder:
        return _written(run, f"{folder}/{RESULT}")


def _quiet_memory() -> dict[str, int]:
    """The memory of this process before a run, whose highest level is forgotten where the system allows it."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # what the last model left
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory.of_process()
