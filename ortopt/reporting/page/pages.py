"""The pages of a run, of several, and of two models, as text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ortopt.optimization.result import OptimizeResult
from ortopt.reporting.page.document import document, index
from ortopt.reporting.page.run_data import describe_diff, describe_run
from ortopt.reporting.report import as_dict
from ortopt.system.files import write_atomically

if TYPE_CHECKING:
    import onnx_ir as ir

_KINDS: Final = {"broken": "bad", "not verified": "unknown", "verified": "good"}
"""How an index colours what became of a model, the worst first."""


def page_of(result: OptimizeResult, title: str = "model") -> str:
    """The page of a result for a browser, which needs nothing else.

    It shows what each node was made of only where a `Lineage` has observed the run:
    ``page_of(optimize(model, observers=[ortopt.Lineage()]))``.

    Args:
        result: The result.
        title: The page's title.
    """
    return run_page(result, as_dict(result, source=title))


def write_page(result: OptimizeResult, path: str | os.PathLike[str], title: str | None = None) -> None:
    """Write the page of a result, atomically (see `page_of`).

    Args:
        result: The result.
        path: The file.
        title: The page's title; the file's name if None.

    Raises:
        OutputError: If it cannot be written.
    """
    write_atomically(path, page_of(result, Path(path).stem if title is None else title).encode("utf-8"))


def run_page(result: OptimizeResult, report: Mapping[str, Any]) -> str:
    """The page of a run.

    Args:
        result: The result.
        report: The same as data, from `ortopt.reporting.report.as_dict`.
    """
    return document(describe_run(result, report, result.lineage))


def diff_page(first: ir.Model, second: ir.Model, data: Mapping[str, Any]) -> str:
    """The page that compares two models.

    Args:
        first: The first model.
        second: The second.
        data: How they differ, from `ortopt.reporting.model_diff.compare`.
    """
    return document(describe_diff(first, second, data))


def index_page(title: str, reports: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    """An index over the pages of several runs.

    Args:
        title: The page's title.
        reports: The reports, from `ortopt.reporting.report.as_dict`, each with the address of its page, or with none.
    """
    rows = [_row(report, page) for report, page in reports]
    subtitle = "1 model" if len(rows) == 1 else f"{len(rows)} models"
    return index(title, subtitle, _KINDS, rows)


def _row(report: Mapping[str, Any], page: str) -> dict[str, Any]:
    nodes = report.get("nodes") or {}
    outcome = report.get("verification") or {}
    return {
        "name": str(report["input"]),
        "page": page,
        "status": "broken" if report.get("error") else "verified" if report.get("verified") else "not verified",
        "nodes_before": nodes.get("before"),
        "nodes": nodes.get("after"),
        "size": (report.get("file_bytes") or {}).get("after"),
        "error": outcome.get("worst"),
        "rewrites": report.get("rewrites"),
        "seconds": sum(report["seconds"].values()) if report.get("seconds") else None,
        "says": [str(text) for text in (report.get("error"), outcome.get("not_as_deployed")) if text],
    }
