"""Progress as a live line on a terminal: pass, level, step, number of nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.observers import Observer
from ortopt.transformer import GraphTransformer

if TYPE_CHECKING:
    from rich.console import Console

_IN_WORDS: Final = {
    "load": "loading",
    "verify": "verifying: the result runs beside the original",
    "save": "writing",
    "profile": "profiling the original and the result",
}
_PERIOD = 0.05  # seconds between two updates; the terminal is drawn ten times a second


class Progress(Observer):
    """Shows the progress of a run.

    Args:
        out: A console on a terminal.
    """

    def __init__(self, out: Console) -> None:
        from rich import progress

        self._bar = progress.Progress(
            progress.SpinnerColumn("line"),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20),
            progress.TextColumn("{task.fields[nodes]}", markup=False),
            progress.TimeElapsedColumn(),
            console=out,
            transient=True,
        )
        self._task = self._bar.add_task("loading", total=None, nodes="")
        self._begun: set[tuple[int, str]] = set()
        self._due = 0.0

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def expect(self, runs: int) -> None:
        """Set the number of transformers, those of several levels counted at each."""
        self._begun.clear()
        self._bar.reset(self._task, total=max(runs, 1), description="optimizing")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show a phase of unknown length, within a ``with`` block: the bar moves to and fro."""
        self._bar.remove_task(self._task)  # neither `update` nor `reset` makes a known total unknown
        self._task = self._bar.add_task(_IN_WORDS.get(name, name), total=None, nodes="")
        yield

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Show the transformer that runs."""
        self._begun.add((level, transformer.name))
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _PERIOD
        self._bar.update(
            self._task,
            description=f"level {level}, step {step}: {transformer.name}",
            completed=len(self._begun),
            nodes=f"{len(scope.of(graph).model.graph)} nodes",
        )
