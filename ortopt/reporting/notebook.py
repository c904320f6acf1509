"""A result as a notebook shows it: sizes before and after, how it was verified, and its page in a frame."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ortopt.optimization.result import OptimizeResult
from ortopt.reporting.long_report import change, in_short
from ortopt.reporting.page.pages import run_page
from ortopt.reporting.report import as_dict, size
from ortopt.serialization.load import SOURCE_KEY
from ortopt.terminal_text import one_line

MAX_NODES: Final = 20_000
"""Above it no page is made for a notebook: that would take seconds, each time that a cell shows a result."""

MAX_PAGE: Final = 2_000_000
"""Characters of a page that is put into a notebook, which is saved with it."""

_MAX_OPS: Final = 6

# The frame's document has an origin of its own: nothing in it reaches the notebook.
_FRAME: Final = (
    '<iframe title="report of ortopt" sandbox="allow-scripts" loading="lazy" width="100%" height="640"'
    ' style="border: 1px solid #8884; border-radius: 6px" srcdoc="{page}"></iframe>'
)
_WITHOUT_LINEAGE: Final = (
    "The page shows the result alone; with <code>observers=[ortopt.Lineage()]</code> it shows the original beside it,"
    " and what each node was made of."
)
_TOO_LARGE: Final = (
    "The report's page is too large for a notebook: <code>ortopt.reporting.page.pages.write_page(result,"
    ' "report.html")</code> writes it.'
)


def notebook_html(result: OptimizeResult) -> str:
    """What a notebook shows of a result, as HTML that needs nothing else; what names hold is text, never markup.

    Args:
        result: The result.
    """
    origin = result.model.meta.get(SOURCE_KEY)
    data = as_dict(result, source=None if origin is None or origin.path is None else Path(origin.path).name)
    outcome = data["verification"] or {}
    told = [
        in_short({**data, "file_bytes": data["constant_bytes"]}),
        *map(str, filter(None, (outcome.get("reason"), outcome.get("not_as_deployed")))),
    ]
    told += [f"left out: {repair['pass']}: {repair['reason']}" for repair in data["repairs"]]
    lines = "".join(f"<p>{_text(line)}</p>" for line in told)
    return f'<div class="ortopt-result">{lines}{_table(data)}{_page(result, data)}</div>'


def _text(text: str) -> str:
    return html.escape(one_line(text))


def _table(data: Mapping[str, Any]) -> str:
    """Sizes, and the ops that changed most."""
    rows = [("nodes", *change(data["nodes"])), ("initializers", *change(data["initializers"]))]
    rows.append(("constants", *change(data["constant_bytes"], size)))
    changed = [(op, counts) for op, counts in data["nodes"]["by_op"].items() if counts["before"] != counts["after"]]
    changed.sort(key=lambda row: (-abs(row[1]["after"] - row[1]["before"]), row[0]))
    rows += [(op, *change(counts)) for op, counts in changed[:_MAX_OPS]]
    body = "".join(map(_row, rows))
    more = len(changed) - _MAX_OPS
    rest = f'<tr><td colspan="4">{more} more ops changed</td></tr>' if more > 0 else ""
    head = "<tr><th></th><th>before</th><th>after</th><th>change</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{body}{rest}</tbody></table>"


def _row(cells: Iterable[str]) -> str:
    name, *numbers = cells
    right = "".join(f'<td style="text-align: right">{_text(number)}</td>' for number in numbers)
    return f'<tr><td style="text-align: left">{_text(name)}</td>{right}</tr>'


def _page(result: OptimizeResult, data: Mapping[str, Any]) -> str:
    """The page in a frame, or how it is had where it is too large for that."""
    lineage = result.lineage
    nodes = data["nodes"]["after"] + (0 if lineage is None else data["nodes"]["before"])
    page = run_page(result, data) if nodes <= MAX_NODES else None
    if page is None or len(page) > MAX_PAGE:
        return f"<p>{_TOO_LARGE}</p>"
    hint = f"<p><small>{_WITHOUT_LINEAGE}</small></p>" if lineage is None else ""
    return _FRAME.format(page=html.escape(page)) + hint
