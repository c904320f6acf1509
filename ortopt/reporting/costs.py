"""What a report says about the costs of fused forms: which table decided, what was taken, and what was not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ortopt.analysis import costs
from ortopt.analysis.cost_tables import table_of
from ortopt.analysis.costs import Cost, CostTable, Form
from ortopt.analysis.representative_sizes import representative_places
from ortopt.analysis.speeds import between
from ortopt.optimization.result import OptimizeResult
from ortopt.options import Options
from ortopt.terminal_text import one_line

_DIGITS: Final = 16
"""How many of a hash's digits people are shown."""


def fused_forms(result: OptimizeResult, options: Options | None) -> dict[str, Any]:
    """The table that decided about fused forms, and what it said, as data that json can write.

    Args:
        result: The result.
        options: Options of the run; the defaults if None.

    Returns:
        ``table``, ``sha256`` and ``over``: the table and the one that it is laid over; ``sizes``: those at which it was
        asked; ``taken``: for each op that there is more of, what the table knows of it on the chosen providers;
        ``declined``: the forms that were not worth it, and how many candidates there were.
    """
    options = options or Options()
    table = table_of(options.costs)
    before, after = result.summary.before.ops, result.summary.after.ops
    more = {_form(op): count - before.get(op, 0) for op, count in after.items() if count > before.get(op, 0)}
    known = [
        (cost, more[cost.form]) for cost in table.costs if cost.form in more and cost.provider in options.providers
    ]
    return {
        **described(table),
        "sizes": [extents(place) for place in representative_places(result.model, options.dim_hints)],
        "taken": [{**as_row(cost), "count": count} for cost, count in known],
        "declined": [
            {"pass": refusal.transformer, **as_row(refusal.cost), "count": refusal.count}
            for refusal in result.summary.declined
        ],
    }


def described(table: CostTable) -> dict[str, Any]:
    """Which table it is, as data that json can write.

    Args:
        table: The table.
    """
    over = None if table.over is None else {"table": table.over.name, "sha256": table.over.digest}
    return {"table": table.name, "sha256": table.digest, "over": over}


def table_in_words(data: Mapping[str, Any]) -> str:
    """A table for people, e.g. ``mine (sha256 0123456789abcdef) over ortopt-onnxruntime-1.31 (sha256 …)``.

    Args:
        data: From `described`.
    """
    name = f"{one_line(data['table'])} (sha256 {data['sha256'][:_DIGITS]})"
    return f"{name} over {table_in_words({**data['over'], 'over': None})}" if data["over"] else name


def known(ops: Iterable[tuple[str, str]], forms: Iterable[tuple[str, str, str]] = ()) -> list[dict[str, Any]]:
    """What the table that ships knows of some ops, in all their forms, as data that json can write.

    Args:
        ops: The ops, as (domain, op type).
        forms: Further forms, as (domain, op type, variant).
    """
    wanted = frozenset((*ops, *forms))
    return [as_row(cost) for cost in costs.shipped().costs if not wanted.isdisjoint((cost.form, cost.form[:2]))]


def on_each(row: Mapping[str, Any]) -> str:
    """The speeds of a row on each kind of processor, e.g. ``AVX-512: as fast, AVX2: 1.07× faster``; empty for one.

    Args:
        row: Of `as_row`.
    """
    return ", ".join(f"{kernels}: {between(*speed)}" for kernels, speed in row["speeds"].items())


def in_words(row: Mapping[str, Any]) -> str:
    """A row of `known` for people, e.g. ``BiasGelu on CPU: loses, 1.23× slower to 1.11× faster than Add and Gelu``."""
    form = f"{row['op'].rpartition('::')[2]} {row['variant']}".strip()
    speed = "not measured" if row["speed"] is None else between(*sorted(row["speed"]))
    sizes = f" ({row['sizes']})" if row["sizes"] else ""
    provider = row["provider"].removesuffix("ExecutionProvider")
    of = "" if row["speed"] is None else f" {'as' if speed.endswith('fast') else 'than'} {row['instead_of']}"
    return f"{form} on {provider}: {row['verdict']}, {speed}{of}{sizes}"


def _form(op: str) -> Form:
    domain, _, op_type = op.rpartition("::")
    return Form(domain, op_type)


def extents(sizes: Mapping[str, Any]) -> dict[str, list[int]]:
    """Sizes as json has them: of each the least and the greatest."""
    return {name: [size, size] if isinstance(size, int) else list(size) for name, size in sizes.items()}


def as_row(cost: Cost) -> dict[str, Any]:
    """A row of a table as data that json can write.

    Args:
        cost: The row.
    """
    return {
        "op": str(cost.form._replace(variant="")),
        "variant": cost.form.variant,
        "provider": cost.provider,
        "verdict": cost.verdict.value,
        "speed": None if cost.speed is None else list(cost.speed),
        "speeds": {kernels: list(speed) for kernels, speed in cost.speeds.items()},
        "instead_of": cost.instead_of,
        "sizes": cost.sizes,
    }


__all__ = ["as_row", "described", "extents", "fused_forms", "in_words", "known", "on_each", "table_in_words"]
