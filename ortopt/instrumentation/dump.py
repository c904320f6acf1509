"""Observers that write: the model before and after each transformer that changed something, and a trace of the run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortopt.errors import OutputError
from ortopt.graph import scope
from ortopt.observers import HistoryEntry, Observer
from ortopt.serialization.save import save
from ortopt.system.files import same_file
from ortopt.terminal_text import quoted
from ortopt.transformer import GraphTransformer

START = "0000-start.onnx"


class Dump(Observer):
    """Writes ``NUMBER-levelL-stepS-GRAPH-NAME.before.onnx`` and ``.after.onnx``, and ``0000-start.onnx`` first.

    The model after one transformer is the model before the next: such files are hard links where the file system has
    them. Rules share a sweep: their files hold the model before and after the sweep.

    Args:
        folder: The folder; it is created if it does not exist.

    Raises:
        OutputError: If it cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make the folder {quoted(str(folder))}: {error.strerror}") from error
        self._latest: Path | None = None
        self._previous: Path | None = None
        self._number = 0

    def begin(self) -> None:
        """A run begins with the original again."""
        self._latest = self._previous = None

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Write the original, before the first transformer."""
        if self._latest is None:
            self._latest = self._folder / START
            save(scope.of(graph).model, self._latest)
        self._previous = None

    def after(self, entry: HistoryEntry, graph: ir.Graph) -> None:
        """Write the model if a transformer has changed it."""
        if not entry.modified or self._latest is None:
            return
        self._number += 1
        where = re.sub(r"[^A-Za-z0-9._]+", "_", entry.graph)[:60]
        stem = f"{self._number:04d}-level{entry.level}-step{entry.step}-{where}-{entry.transformer}"
        before, after = (self._folder / f"{stem}.{side}.onnx" for side in ("before", "after"))
        if self._previous is None:  # the first of its sweep
            save(scope.of(graph).model, after)
            self._previous, self._latest = self._latest, after
        else:
            _link(self._latest, after)
        _link(self._previous, before)


def is_dump(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a file is one that dumps into a folder may write over, by its place and name."""
    return any(
        re.fullmatch(r"\d{4,}-(start|level\d-.*)\.(onnx|[0-9a-f]{16}\.data)", entry.name) and same_file(entry, path)
        for entry in (Path(folder).iterdir() if os.path.isdir(folder) else ())  # noqa: PTH112 -- says no to what is no name
    )


def _link(existing: Path, new: Path) -> None:
    try:
        new.unlink(missing_ok=True)
        try:
            os.link(existing, new)
        except OSError:
            shutil.copyfile(existing, new)
    except OSError as error:
        raise OutputError(f"cannot write {quoted(str(new))}: {error.strerror or error}") from error


_THREAD = 1


class Trace(Observer):
    """Collects a span for each phase, for each run of each transformer, and a mark for each rewrite.

    Rules share a sweep: their spans follow one another inside the sweep's span, each with the total time of its rule.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._zero = time.perf_counter()
        self._events: list[dict[str, Any]] = [
            self._event("M", "process_name", args={"name": "ortopt"}),
            self._event("M", "thread_name", args={"name": "optimize"}),
        ]
        self._announced: list[str] = []
        self._started = self._ended = self._cursor = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The trace as data that json can write."""
        return {"traceEvents": self._events, "displayTimeUnit": "ms"}

    @contextlib.contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """A phase of the run, e.g. ``load``, as long as this lasts."""
        started = self._now()
        try:
            yield
        finally:
            self._add("phase", phase, started, self._now(), {})

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Record when a sweep or a transformer begins."""
        if self._ended >= self._started:
            self._announced.clear()
        self._announced.append(transformer.name)
        self._started = self._now()

    def after(self, entry: HistoryEntry, graph: ir.Graph) -> None:
        """Add a span."""
        args = {
            "level": entry.level,
            "step": entry.step,
            "graph": entry.graph,
            "rewrites": entry.rewrites,
            "visits": entry.visits,
        }
        sweep = len(self._announced) > 1
        if self._ended < self._started:  # the first of the sweep
            self._ended, self._cursor = self._now(), self._started
            nodes = {"nodes": len(scope.of(graph).model.graph)}
            if sweep:
                name = f"sweep of {len(self._announced)} rules"
                shared = {key: args[key] for key in ("level", "step", "graph")}
                self._add("sweep", name, self._started, self._ended, shared)
            self._events.append(self._event("C", "nodes", self._ended, args=nodes))
        end = min(self._cursor + entry.seconds * 1e6, self._ended) if sweep else self._ended
        self._add("pass", entry.transformer, self._cursor, end, args)
        self._cursor = end

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        """Add a mark."""
        args = {"number": number, "nodes": [f"{node.op_type} {node.name or ''}".strip() for node in nodes]}
        self._events.append({**self._event("i", transformer.name, self._now(), args=args), "cat": "rewrite", "s": "t"})

    def failed(self, transformer: GraphTransformer, graph: ir.Graph, reason: str) -> None:
        """Add a mark."""
        event = self._event("i", f"{transformer.name} failed", self._now(), args={"reason": reason})
        self._events.append({**event, "cat": "failure", "s": "p"})
        self._ended = self._now()

    def _now(self) -> float:
        """Microseconds since the start."""
        return (time.perf_counter() - self._zero) * 1e6

    def _add(self, category: str, name: str, start: float, end: float, args: dict[str, Any]) -> None:
        event = self._event("X", name, start, args=args)
        self._events.append({**event, "cat": category, "dur": round(end - start, 3)})

    def _event(self, kind: str, name: str, at: float = 0.0, *, args: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "ph": kind, "ts": round(at, 3), "pid": self._process, "tid": _THREAD, "args": args}
