"""What a report says about the costs of fused forms: which table decided, at which sizes, by which row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ortopt.analysis import costs
from ortopt.analysis.cost_tables import table_for
from ortopt.analysis.costs import Cost, CostTable, Form, in_sizes
from ortopt.analysis.node_sizes import representative_places
from ortopt.optimization.result import OptimizeResult
from ortopt.options import Options
from ortopt.reporting.tables import say, table
from ortopt.terminal_text import between, one_line

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.instrumentation.explanation import WeighedForm

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
    table = table_for(options)
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

    Those with older releases of ONNX Runtime that the run allows follow.

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
        "releases": cost.releases,
        "instead_of": cost.instead_of,
        "sizes": cost.sizes,
    }


def as_data(forms: Iterable[WeighedForm], options: Options) -> dict[str, Any]:
    """The table that decided, and its choices, as data that json can write.

    Args:
        forms: What an `ortopt.instrumentation.explanation.Explanation` has recorded.
        options: Options of the run.
    """
    return {"costs": described(table_for(options)), "choices": weighed_forms(forms)}


def weighed_forms(forms: Iterable[WeighedForm]) -> list[dict[str, Any]]:
    """The choices that a table decided, each kind once, as data that json can write.

    Args:
        forms: What an `ortopt.instrumentation.explanation.Explanation` has recorded.
    """
    counts: dict[str, dict[str, Any]] = {}
    for one in forms:
        decision = one.decision
        cost = decision.cost
        known = None if cost is None else {**as_row(cost), "at": at_of(cost), "source": cost.source}
        row = {
            "pass": one.transformer,
            "form": str(decision.form),
            "taken": decision.taken,
            "smaller": decision.smaller,
            "cost": known,
            "asked": [extents(sizes) for sizes in decision.places],
        }
        counts.setdefault(repr(row), {**row, "count": 0})["count"] += 1
    return sorted(counts.values(), key=lambda row: (row["pass"], row["form"], not row["taken"], -row["count"]))


def why(row: Mapping[str, Any]) -> str:
    """What decided about a form, in a sentence for people.

    Args:
        row: Of `weighed_forms`.
    """
    cost = row["cost"]
    if cost is None:
        return "the table has no row of it: it is taken as its pass made it"
    if cost["speed"] is None:
        told = f"nobody has measured whether it is faster than {cost['instead_of']}"
    else:
        speed = between(*cost["speed"])
        told = f"{speed} {'as' if speed.endswith('fast') else 'than'} {cost['instead_of']}"
    told += f" ({cost['sizes']})" if cost["sizes"] else ""
    here = list(dict.fromkeys(text for sizes in row["asked"] if (text := _sizes_in_words(sizes, cost["at"]))))
    told += f"; here {'; or '.join(here)}" if here else ""
    if cost["releases"]:
        told += f"; {'slower' if cost['verdict'] == 'loses' else 'not measured'} with ONNX Runtime {cost['releases']}"
    elif cost["verdict"] in ("neutral", "unknown"):
        told += "; the graph gets smaller" if row["smaller"] else "; the graph would not get smaller"
    return f"{told}; {on_each(cost)}" if cost["speeds"] else told


def _sizes_in_words(sizes: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    """The sizes that a row names, or those that say most."""
    usual = ("length", "past") if "past" in sizes else ("rows", "columns")
    shown = named if any(name in sizes for name in named) else usual
    return in_sizes({name: tuple(sizes[name]) for name in shown if name in sizes})


def show(data: Mapping[str, Any], out: Console) -> None:
    """Print the choices, if there were any.

    Args:
        data: Holds what `as_data` gives.
        out: The console.
    """
    if not data["choices"]:
        return
    out.print()
    say(out, f"chosen by the table of costs {table_in_words(data['costs'])}:", "bold")
    rows = (
        (row["form"], "taken" if row["taken"] else "left out", row["count"], one_line(why(row)))
        for row in data["choices"]
    )
    out.print(table(("form", "", "asked", "why"), rows, text=2, prose="why"))


def at_of(cost: Cost) -> dict[str, list[float | None]]:
    """The sizes of a row as json has them: null for no end.

    Args:
        cost: The row.
    """
    return {name: [low, None if high == math.inf else high] for name, (low, high) in cost.at.items()}
