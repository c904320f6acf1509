"""All that can be measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ortopt.analysis.costs import CostTable, Form
from ortopt.cost_measurement import activations, attention, halves, images, products, quantized, rewrites
from ortopt.cost_measurement.entries import Entry

ENTRIES: tuple[Entry, ...] = (
    *activations.ENTRIES,
    *attention.ENTRIES,
    *halves.ENTRIES,
    *products.ENTRIES,
    *images.ENTRIES,
    *quantized.ENTRIES,
    *rewrites.ENTRIES,
)


_OF_THREADS: Final = "it is about several threads, and tables are of one number of threads"

UNMEASURED: Final[Mapping[Form, str]] = {
    Form("", "Conv", "of signals as images, on one thread"): _OF_THREADS,
    Form("", "Conv", "of pieces of signals"): _OF_THREADS,
    Form("", "Conv", "of columns as rows, on one thread"): _OF_THREADS,
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


__all__ = ["ENTRIES", "UNMEASURED", "without_entry"]
