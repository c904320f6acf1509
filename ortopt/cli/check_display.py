"""How a check goes on: a live table on a terminal, a line per model in a log."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ortopt.regression.check import ProgressListener
from ortopt.regression.facts import latency_of
from ortopt.regression.results import EXIT_CODES, Check, Result, Status
from ortopt.reporting import tables
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_COLOURS: Final = {
    **dict.fromkeys(EXIT_CODES, tables.Style.BAD),
    Status.EXPECTED: tables.Style.WORSE,
    Status.FIXED: tables.Style.GOOD,
    Status.BETTER: tables.Style.GOOD,
}
_BAR: Final = 20
_TIME: Final = 8
_SHOWN: Final = 10
"""Models that a live table shows above the progress."""


class Lines(ProgressListener):
    """A line for each model as soon as something is known of it.

    Args:
        out: Where they go.
    """

    def __init__(self, out: Console) -> None:
        self._out = out

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""

    def done(self, result: Result) -> None:
        """Say what is known of a model."""
        tables.say(self._out, line_of(result), _COLOURS.get(result.status))


class Live(Lines):
    """A table of what runs, what is done, and how long it will take, on a terminal.

    Args:
        out: A terminal.
        jobs: How many models run at a time.
    """

    def __init__(self, out: Console, jobs: int) -> None:
        from rich.live import Live as Screen

        super().__init__(out)
        self._jobs = jobs
        self._started = time.monotonic()
        self._total, self._recorded = 0, 0.0
        self._running: dict[str, float] = {}
        self._last: deque[Result] = deque(maxlen=_SHOWN)
        self._ran = 0
        self._screen = Screen(get_renderable=self._table, console=out, refresh_per_second=4, transient=True)

    def __enter__(self) -> Live:
        self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.stop()

    def expect(self, models: int, seconds: float) -> None:
        """So many models are going to run; they took so many seconds when the baseline was written."""
        self._total += models
        self._recorded = seconds
        self._started = time.monotonic()

    def begun(self, name: str) -> None:
        """A model's turn has come."""
        self._running[name] = time.monotonic()

    def done(self, result: Result) -> None:
        """Show a model among those that are done; what is a failure stays on the terminal."""
        self._last.append(result)
        self._ran += self._running.pop(result.name, None) is not None
        self._running.pop(f"{result.name} (latency)", None)
        if result.is_failure or result.status in _COLOURS:
            tables.say(self._out, line_of(result), _COLOURS.get(result.status))

    def _table(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, expand=True)
        table.add_column(no_wrap=True, min_width=max(len(status.value) for status in Status))
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        if any(latency_of(result.facts) for result in self._last):
            table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True, min_width=_TIME)
        for result in self._last:
            style = _COLOURS.get(result.status, tables.Style.PLAIN)
            cells = [result.status.value, one_line(result.name), f"{result.seconds:.1f} s" if result.seconds else ""]
            if len(table.columns) > len(cells):
                cells.insert(2, latency_of(result.facts))
            table.add_row(*(Text(cell, style=style) for cell in cells))
        now = time.monotonic()
        for name, since in list(self._running.items())[:_SHOWN]:
            between = [Text()] * (len(table.columns) - 3)
            table.add_row(Text("running"), Text(one_line(name)), *between, Text(f"{now - since:.0f} s"))
        progress = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=max(self._total, 1), completed=self._ran, width=_BAR)
        progress.add_row(bar, Text(self._progress(now)))
        return Group(table, progress)

    def _progress(self, now: float) -> str:
        left = self.remaining(now - self._started)
        remaining = f", about {_duration(left)} left" if left is not None else ""
        return f"{self._ran} of {self._total} models{remaining}"

    def remaining(self, elapsed: float) -> float | None:
        """The seconds that are left, about; None before anything is known.

        Args:
            elapsed: Seconds since the first model began.
        """
        if self._ran:
            return elapsed / self._ran * (self._total - self._ran)
        return self._recorded / self._jobs if self._recorded else None


def _duration(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def line_of(result: Result) -> str:
    """One line on a model: what is said of it, its figures, and why."""
    told = {finding.fact for finding in result.findings}
    says = "; ".join((*result.says(), *([result.reason] if result.reason else [])))
    parts = [f"{one_line(result.name)}: {result.status.value}"]
    parts += [text for names, text in _figures(result) if told.isdisjoint(names)]
    return ", ".join(parts) + (f": {_whole(says)}" if says else "")


def _figures(result: Result) -> Iterator[tuple[tuple[str, ...], str]]:
    """Figures, each with the facts of findings that tell it, too."""
    facts = result.facts
    if "nodes" in facts:
        yield ("nodes", "node_share"), f"{facts['nodes']} nodes"
    if isinstance(facts.get("error"), float):
        yield ("error",), f"error {facts['error']:.2g}"
    if latency := latency_of(facts):
        yield ("latency",), f"latency {latency}"
    if result.seconds:
        yield ("seconds",), f"{result.seconds:.1f} s"


def _whole(text: str) -> str:
    """Sentences as one line, however many there are."""
    return "; ".join(one_line(part) for part in text.split("; "))


def show(check: Check, out: Console, *, update: str = "") -> None:
    """The last lines of a check.

    Args:
        check: The results.
        out: Where they go.
        update: The baseline's file if it was written.
    """
    for note in check.notes:
        tables.say(out, f"note: {one_line(note)}")
    if check.missing:
        names = ", ".join(map(one_line, check.missing[:_SHOWN])) + (", …" if len(check.missing) > _SHOWN else "")
        tables.say(out, f"note: {len(check.missing)} of the baseline were not checked: {names}")
    better = [result for result in check.results if result.status in (Status.BETTER, Status.FIXED)]
    if better and not update and not check.compared:
        tables.say(out, f"{len(better)} are better than the baseline: --update keeps that")
    for text in check.advice():
        tables.say(out, text)
    counts = ", ".join(f"{count} {status}" for status, count in check.counts().items())
    tables.say(out, f"{one_line(check.scope)}: {counts}")
    if update:
        tables.say(out, f"baseline written: {one_line(update)}")


def watcher(out: Console, jobs: int, *, quiet: bool) -> Lines:
    """What shows how a check goes on, as a context.

    Args:
        out: Where it goes.
        jobs: How many models run at a time.
        quiet: Whether failures alone are shown.
    """
    if quiet:
        return Failures(out)
    return Live(out, jobs) if out.is_terminal else Lines(out)


class Failures(Lines):
    """A line for each failure."""

    def done(self, result: Result) -> None:
        """Say what failed."""
        if result.is_failure:
            super().done(result)
