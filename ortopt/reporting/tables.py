"""Tables and lines that fit the screen: what does not is arranged in another way; no number and no name is broken."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

_GAP: Final = 3
_PROSE_WIDTH: Final = 24
"""Columns that sentences have at least, before a table is given up for paragraphs."""


_SHORT: Final = 30
"""Columns of a cell that is not broken between words."""

_UNBROKEN: Final = "\N{NO-BREAK SPACE}"

_FIGURES: Final = re.compile(r"(?<=\d) (?=(?:B|kB|MB|GB|TB|s|ms)\b|%)|(?<=\w) (?=→)|(?<=→) ")
"""The spaces in a figure: between a number and its unit, and around the arrow from one number to another."""


class Style:
    """What colours mean; all are legible on white and on black, so nothing is yellow, white or dim.

    Attributes:
        PLAIN: All that is as expected.
        STRONG: Headings.
        GOOD: Better than before.
        WORSE: Worse than before, or in doubt.
        BAD: Wrong.
    """

    PLAIN: Final = ""
    STRONG: Final = "bold"
    GOOD: Final = "green"
    WORSE: Final = "magenta"
    BAD: Final = "red"


THEME: Final = {
    "progress.elapsed": Style.PLAIN,
    "progress.spinner": Style.GOOD,
    "bar.back": Style.PLAIN,
    "bar.complete": Style.GOOD,
    "bar.finished": Style.GOOD,
    "bar.pulse": Style.GOOD,
}
"""The styles of a console that rich has by name, of which its own are not all legible."""


class FittingTable(Struct, frozen=True):
    """A table without lines; where the screen is too narrow for it, a paragraph for each row.

    Attributes:
        headers: Headers of the columns.
        rows: The cells, one line each.
        text: Number of columns that hold text; the columns after them hold numbers, aligned to the right.
        headless: Whether the headers are left out.
        spare: Headers of the columns that a narrow screen leaves out, the first to go first.
        prose: The column of sentences, which may be broken between words; None where there is none.
        styles: A style for each row; empty for none.
    """

    headers: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    text: int
    headless: bool
    spare: Sequence[str]
    prose: int | None
    styles: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, or what takes its place."""
        columns, width = list(range(len(self.headers))), options.max_width
        for header in self.spare:
            if self._least(columns) > width:
                columns.remove(self.headers.index(header))
        if self._least(columns) <= width:
            yield self._as_table(columns, width)
        else:
            yield from self._as_paragraphs(columns, width)

    def _least(self, columns: Sequence[int]) -> int:
        """The width that the columns need at least."""
        widths = self._widths(columns)
        return sum(widths.values()) + _GAP * (len(widths) - 1)

    def _widths(self, columns: Sequence[int]) -> dict[int, int]:
        from rich.cells import cell_len

        every = self.rows if self.headless else (self.headers, *self.rows)
        widths = {column: max((cell_len(row[column]) for row in every), default=0) for column in columns}
        for column in columns:
            if column == self.prose:
                words = [word for row in every for word in row[column].split()]
                longest = max(map(cell_len, words), default=0)
                widths[column] = min(widths[column], max(_PROSE_WIDTH, longest))
        return widths

    def _as_table(self, columns: Sequence[int], width: int) -> Table:
        from rich.table import Table
        from rich.text import Text

        shown = Table(
            box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_header=not self.headless
        )
        spare = width - self._least(columns)
        for column in columns:
            is_prose = column == self.prose
            more = self._widths([column])[column] + spare if is_prose else None
            shown.add_column(
                self.headers[column],
                justify="left" if column < self.text or is_prose else "right",
                no_wrap=not is_prose,
                max_width=more,
            )
        for row, style in zip(self.rows, self.styles, strict=True):
            shown.add_row(*(Text(row[column]) for column in columns), style=style)
        return shown

    def _as_paragraphs(self, columns: Sequence[int], width: int) -> Iterator[Text]:
        """For each row its first cell, and below it the others, each with its header; broken between words only."""
        from rich.text import Text

        first, *others = columns
        for row, style in zip(self.rows, self.styles, strict=True):
            cells = [self._as_words(column, row[column]) for column in others if row[column].strip()]
            if row[first]:
                yield Text(row[first], style or "bold", overflow="fold")
            for line in broken(", ".join(cells), width, indent="  "):
                yield Text(line, style, overflow="fold")

    def _as_words(self, column: int, cell: str) -> str:
        """A cell behind its header; together where it is short and no sentence."""
        text = f"{self.headers[column]} {cell}".strip()
        return text if column == self.prose or len(text) > _SHORT else text.replace(" ", _UNBROKEN)


def broken(line: str, width: int, indent: str = "", lines: int | None = None) -> list[str]:
    """A line in several, broken between words and in no figure; a word longer than the screen stays whole here.

    Args:
        line: The line.
        width: The columns of the screen.
        indent: What the lines begin with; those after the first are indented as the line itself is, too.
        lines: How many there may be: the end of a line that needs more is left out; None for any number.
    """
    own = line[: len(line) - len(line.lstrip())]
    parts = textwrap.wrap(
        _FIGURES.sub(_UNBROKEN, line.strip()),
        width,
        initial_indent=indent + own,
        subsequent_indent=indent + own,
        break_long_words=False,
        break_on_hyphens=False,
        max_lines=lines,
        placeholder=" … (-v)",
    )
    return [part.replace(_UNBROKEN, " ") for part in parts]


def table(
    headers: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    text: int = 1,
    headless: bool = False,
    spare: Sequence[str] = (),
    prose: str | None = None,
    styles: Iterable[str] | None = None,
) -> FittingTable:
    """A table without lines that fits the screen.

    Args:
        headers: Headers of the columns.
        rows: The cells; shown as one line each, control characters spelled out.
        text: Number of columns that hold text; the columns after them hold numbers, aligned to the right.
        headless: Whether the headers are left out.
        spare: Headers of the columns that a narrow screen leaves out, the first to go first.
        prose: The header of a column of sentences, which may be broken between words; the last where headers are left
            out.
        styles: A style for each row.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    shown = [""] * len(cells) if styles is None else list(styles)
    names = tuple(headers)
    sentences = names.index(prose) if prose is not None else len(names) - 1 if headless else None
    return FittingTable(names, cells, text, headless, spare, sentences, shown)


def say(out: Console, line: str, style: str | None = None) -> None:
    """Print a line: on a terminal broken between words where it must be, elsewhere as it is.

    Args:
        out: The console.
        line: The line.
        style: Its style.
    """
    for part in broken(line, out.width) if out.is_terminal and line.strip() else [line]:
        out.print(part, style=style, soft_wrap=True)
