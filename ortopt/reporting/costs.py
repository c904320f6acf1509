"""What a report says about the costs of fused forms: which table decided, what was taken, and what was not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ortopt.analysis import costs
from ortopt.analysis.costs import Cost, Form
from ortopt.analysis.speeds import between
from ortopt.optimization.result import OptimizeResult
from ortopt.options import Options


def fused_forms(result: OptimizeResult, options: Options | None) -> dict[str, Any]:
    """The table that decided about fused forms, and what it said, as data that json can write.

    Args:
        result: The result.
        options: Options of the run; the defaults if None.

    Returns:
        ``table`` and ``sha256``; ``taken``: for each op that there is more of, what the table knows of it on the
        chosen providers; ``declined``: the forms that were not worth it, and how many candidates there were.
    """
    table = costs.shipped()
    before, after = result.summary.before.ops, result.summary.after.ops
    more = {_form(op): count - before.get(op, 0) for op, count in after.items() if count > before.get(op, 0)}
    providers = (options or Options()).providers
    known = [(cost, more[cost.form]) for cost in table.costs if cost.form in more and cost.provider in providers]
    return {
        "table": table.name,
        "sha256": table.digest,
        "taken": [{**_row(cost), "count": count} for cost, count in known],
        "declined": [
            {"pass": refusal.transformer, **_row(refusal.cost), "count": refusal.count}
            for refusal in result.summary.declined
        ],
    }


def known(ops: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """What the table knows of some ops, in all their forms, as data that json can write.

    Args:
        ops: The ops, as (domain, op type).
    """
    wanted = frozenset(ops)
    return [_row(cost) for cost in costs.shipped().costs if cost.form[:2] in wanted]


def in_words(row: Mapping[str, Any]) -> str:
    """A row of `known` for people, e.g. ``BiasGelu on CPU: loses, 1.23× slower to 1.05× faster than Add and Gelu``."""
    form = f"{row['op'].rpartition('::')[2]} {row['variant']}".strip()
    speed = "not measured" if row["speed"] is None else between(*sorted(row["speed"]))
    sizes = f" ({row['sizes']})" if row["sizes"] else ""
    provider = row["provider"].removesuffix("ExecutionProvider")
    of = "" if row["speed"] is None else f" {'as' if speed.endswith('fast') else 'than'} {row['instead_of']}"
    return f"{form} on {provider}: {row['verdict']}, {speed}{of}{sizes}"


def _form(op: str) -> Form:
    domain, _, op_type = op.rpartition("::")
    return Form(domain, op_type)


def _row(cost: Cost) -> dict[str, Any]:
    return {
        "op": str(cost.form._replace(variant="")),
        "variant": cost.form.variant,
        "provider": cost.provider,
        "verdict": cost.verdict.value,
        "speed": None if cost.speed is None else list(cost.speed),
        "instead_of": cost.instead_of,
        "sizes": cost.sizes,
    }


__all__ = ["fused_forms", "in_words", "known"]
