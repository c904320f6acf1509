"""A result in short, as a table of a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Final

_MAX_OPS: Final = 12


def as_html(line: str, totals: Mapping[str, tuple[int, int]], ops: Mapping[str, tuple[int, int]]) -> str:
    """A table of totals and of the ops that changed most; what names hold is text, never markup.

    Args:
        line: What stands above the table.
        totals: Figures before and after, by name.
        ops: Node counts before and after, by op.
    """
    changed = [op for op, (before, after) in ops.items() if before != after]
    changed.sort(key=lambda op: (-abs(ops[op][0] - ops[op][1]), op))
    rows = {**totals, **{op: ops[op] for op in changed[:_MAX_OPS]}}
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{before}</td><td>{after}</td></tr>"
        for name, (before, after) in rows.items()
    )
    head = "<tr><th></th><th>before</th><th>after</th></tr>"
    return f"<p>{html.escape(line)}</p><table>{head}{cells}</table>"
