"""The page's file: data, style and script in one HTML document that asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import ortopt
from ortopt.terminal_text import one_line

_ASSETS: Final = "assets"
SCRIPT: Final = "report.js"
STYLE: Final = "report.css"

_POLICY: Final = "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"
"""Only this very script and style: whatever else may look like one is not run, and nothing is fetched."""

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="ortopt {version}">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript><p>This page needs JavaScript, which it brings along; it asks the network for nothing.</p></noscript>
<main id="page" aria-busy="true"></main>
<script type="text/plain" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def document(data: Mapping[str, Any]) -> str:
    """The page that shows some data.

    The data is compressed and in Base64: no name in it can be markup. The script makes text of it, never elements.

    Args:
        data: From `describe_run`, `describe_diff` or `describe_check`; its ``title`` is the page's.
    """
    script, style = asset(SCRIPT), asset(STYLE)
    text = json.dumps({"ortopt": ortopt.__version__, **data}, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return _PAGE.format(
        policy=_POLICY.format(script=_digest(script), style=_digest(style)),
        version=html.escape(ortopt.__version__),
        title=html.escape(one_line(f"{data['title']} · ortopt")),
        style=style,
        data=base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii"),
        script=script,
    )


def index(
    title: str, subtitle: str, kinds: Mapping[str, str], rows: Iterable[Mapping[str, Any]], notes: Iterable[str] = ()
) -> str:
    """An index over models, which is sorted and filtered in the browser; the worst models are on top at first.

    Args:
        title: The page's title.
        subtitle: What it is an index of.
        kinds: How each status is coloured, the worst status first.
        rows: The models, in the order of those that have one status.
        notes: What else is to be told.
    """
    rank = {status: place for place, status in enumerate(kinds)}
    ranked = sorted(rows, key=lambda row: rank[row["status"]])
    counts = Counter(row["status"] for row in ranked)
    told = {"kind": "check", "title": title, "subtitle": subtitle, "counts": counts, "kinds": kinds}
    return document({**told, "notes": list(notes), "rows": ranked})


def asset(name: str) -> str:
    """A built file that comes with ortopt, as text."""
    return importlib.resources.files(__package__).joinpath(_ASSETS, name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"
