"""All that can be measured, read from the files of this folder.

A file has groups of forms. What a group says holds for each of its forms that does not say otherwise. Where it has
``each``, every form stands for several, and what one of these says comes between the two. Only the values add up: those
of ``each`` come first, then the form's, then the group's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ortopt import documents
from ortopt.analysis.costs import CostTable, Form
from ortopt.measurement.forms.entry import Entry

_FILES: Final = ("activations", "attention", "halves", "products", "images", "quantized", "rewrites")


def _read(name: str) -> Iterator[Entry]:
    document = documents.parse_toml(Path(__file__).with_name(f"{name}.toml").read_bytes())
    for group in document["group"]:
        shared = {key: value for key, value in group.items() if key not in ("form", "each")}
        for each in group.get("each", [{}]):
            for form in group["form"]:
                whole: dict[str, Any] = {**shared, **each, **form}
                whole["values"] = "\n".join(part.get("values", "") for part in (each, form, shared))
                whole["instead_of"] = whole["instead_of"].format(of=whole.get("of", ""))
                yield documents.typed(whole, Entry)


ENTRIES: tuple[Entry, ...] = tuple(entry for name in _FILES for entry in _read(name))


_OF_THREADS: Final = "it is about several threads, and tables are of one number of threads"

UNMEASURED: Final[Mapping[Form, str]] = {
    Form("", "Conv", "of signals as images, on one thread"): _OF_THREADS,
    Form("", "Conv", "of pieces of signals"): _OF_THREADS,
    Form("", "Conv", "of so many pieces of a signal"): _OF_THREADS,
    Form("", "Conv", "of a stage in rows"): _OF_THREADS,
    Form("", "Conv", "of a stage of little work in many rows"): _OF_THREADS,
    Form("", "Conv", "of rows of signals"): _OF_THREADS,
    Form("", "Concat", "of rows of signals"): _OF_THREADS,
    Form("", "Conv", "of columns as rows, on one thread"): _OF_THREADS,
    Form("", "Gemm", "between eight Reshapes"): "it is a weight in a sum over all nodes of a region",
    Form("", "Gather", "of one more number that lies alone"): "it is a weight in a sum over all nodes of a region",
    Form("", "Gather", "for each difference of positions"): "it is a part of a model, of a dozen nodes and more",
}
"""Forms of the table that are not measured, each with the reason."""


def without_entry(table: CostTable, provider: str) -> Iterable[str]:
    """The forms that a table knows on a provider and that are not measured.

    Args:
        table: The table.
        provider: The execution provider's full name.
    """
    known = {entry.form for entry in ENTRIES}
    forms = (cost.form for cost in table.costs if cost.provider == provider)
    return [str(form) for form in dict.fromkeys(forms) if form not in known]
