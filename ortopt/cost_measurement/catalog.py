"""All that can be measured."""

from __future__ import annotations

from collections.abc import Iterable

from ortopt.analysis.costs import CostTable
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


def without_entry(table: CostTable, provider: str) -> Iterable[str]:
    """The forms that a table knows on a provider and that cannot be measured.

    Args:
        table: The table.
        provider: The execution provider's full name.
    """
    known = {entry.form for entry in ENTRIES}
    forms = (cost.form for cost in table.costs if cost.provider == provider)
    return [str(form) for form in dict.fromkeys(forms) if form not in known]


__all__ = ["ENTRIES", "without_entry"]
