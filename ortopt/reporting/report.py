"""What a run did, as plain data, and in sentences that several screens have."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct

import ortopt
from ortopt.analysis import providers, targets
from ortopt.analysis.blocks import FAMILIES
from ortopt.analysis.releases import Requirement
from ortopt.analysis.shape_demand import Demand, demands
from ortopt.api import ModelFigures, OptimizeResult, Repair
from ortopt.errors import TransformerError
from ortopt.graph import scope
from ortopt.interface.ports import as_data
from ortopt.options import Numerics
from ortopt.reporting import half_precision
from ortopt.reporting.costs import fused_forms
from ortopt.reporting.tables import THEME
from ortopt.semantics.op_traits import SHAPE_QUERIES
from ortopt.serialization.load import SOURCE_KEY
from ortopt.system.threads import BackgroundThread
from ortopt.terminal_text import node_name, one_line, quoted

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.optimization.replay import NumberedRewrite
    from ortopt.options import Options
    from ortopt.serialization.save import Saved

SCHEMA = 1
"""Raised when a field of `as_dict` changes its meaning or goes; new fields do not raise it."""

MAX_NODES_SHOWN = 4
"""How many nodes of a rewrite a line names."""

PIPE_WIDTH = 200
"""Columns of output that is no terminal: tables do not fold there."""


def as_dict(
    result: OptimizeResult,
    *,
    source: str | None = None,
    options: Options | None = None,
    saved: Saved | None = None,
    seconds: Mapping[str, float] | None = None,
    error: str | None = None,
    profile: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A result as data that json can write.

    Args:
        result: The result.
        source: Name of the model, as the user wrote it.
        options: Options of the run.
        saved: The file that was written, or None.
        seconds: Seconds of phases beside those of the result, e.g. ``save``.
        error: Reason why nothing was written.
        profile: Where the time goes (see `ortopt.reporting.profiles`).

    Returns:
        Nested dicts and lists; ``schema`` is `SCHEMA`.
    """
    summary, hidden = result.summary, result.not_shown
    origin, graph = result.model.meta.get(SOURCE_KEY), result.model.graph
    data = {
        "schema": SCHEMA,
        "ortopt": ortopt.__version__,
        "input": source,
        "output": None if saved is None else _output(saved),
        "options": None if options is None else plain(options),
        **_changes(summary.before, summary.after),
        "opset": {"before": summary.required.opset, "after": summary.requires.opset},
        "replaceable_weights": sum(value.name in graph.initializers for value in graph.inputs),
        "requires": _requirements(summary.requires, summary.required),
        "runs_on": None if options is None else targets.described(options.target),
        "file_bytes": {"before": origin and origin.nbytes, "after": saved and saved.nbytes + saved.reused},
        "rewrites": summary.rewrites,
        "passes": _passes(result),
        "numerics": _numerics(result),
        "failures": [failure_row(error) for error in summary.failures],
        "shape_arithmetic": shape_arithmetic(result),
        "repairs": [_repair(repair) for repair in result.repairs],
        "interface": as_data(result.interface),
        "half_precision": half_precision.as_data(result.half_precision),
        "costs": fused_forms(result, options),
        "too_large": [{"pass": one.transformer, "count": one.count, "bytes": one.nbytes} for one in summary.too_large],
        "fixed_point": not summary.bound_reached and not result.stopped,
        "bound_reached": list(summary.bound_reached),
        "stopped": result.stopped,
        "verified": result.verified,
        "verified_on": list(result.verified_on),
        "verified_with": _runtimes(result),
        "not_shown": hidden and {"nodes": hidden.nodes, "ops": dict(hidden.ops), "passes": list(hidden.transformers)},
        "verification": None if result.verification is None else plain(result.verification),
        "seconds": {**summary.seconds, **(seconds or {})},
        "profile": profile,
        "error": error,
    }
    return data | {"larger": larger(data)}


def _numerics(result: OptimizeResult) -> list[dict[str, Any]]:
    """The passes whose results differ within a bound, or are the same for finite numbers only."""
    return [
        {"pass": total.transformer, "numerics": total.numerics.value, "error_bound": total.error_bound}
        for total in result.summary.passes
        if total.numerics in (Numerics.BOUNDED, Numerics.FINITE)
    ]


def _runtimes(result: OptimizeResult) -> list[str]:
    """The runtimes on which a result was shown to agree, with their releases: the one that is installed first."""
    if not result.verified or result.verification is None:
        return []
    others = (one.runtime for one in result.verification.elsewhere if one.agrees)
    return list(dict.fromkeys((f"ONNX Runtime {providers.installed_version()}", *others)))


def _requirements(requires: Requirement, required: Requirement) -> dict[str, Any]:
    return {
        "onnxruntime": requires.onnxruntime,
        "original": required.onnxruntime,
        "because": list(requires.because),
        "with_nothing": requires.with_nothing,
        "any_runtime": requires.any_runtime,
        "ops": list(requires.only_onnxruntime),
    }


def _changes(before: ModelFigures, after: ModelFigures) -> dict[str, Any]:
    """The sizes of the model before and after the run."""
    by_op = {
        op: {"before": before.ops.get(op, 0), "after": after.ops.get(op, 0)} for op in sorted({*before.ops, *after.ops})
    }
    return {
        "nodes": {"before": before.nodes, "after": after.nodes, "by_op": by_op},
        "initializers": {"before": before.initializers, "after": after.initializers},
        "functions": {"before": before.functions, "after": after.functions},
        "constant_bytes": {"before": before.nbytes, "after": after.nbytes},
        "loaded_bytes": {"before": before.loaded, "after": after.loaded},
        "blocks": {
            name: {"before": plain(before.blocks[name]), "after": plain(after.blocks[name])} for name in after.blocks
        },
    }


def failure_row(error: TransformerError) -> dict[str, Any]:
    """A transformer that failed, as data."""
    return {
        "pass": error.transformer,
        "level": error.level,
        "step": error.step,
        "graph": error.graph,
        "reason": one_line(error.reason),
    }


def shape_arithmetic(result: OptimizeResult) -> list[dict[str, Any]]:
    """The nodes left in a result that depend on dimensions alone: what needs each of them, and why."""
    if not any(op in result.summary.after.ops for op in SHAPE_QUERIES):
        return []
    return [_demand(demand) for demand in demands(result.model)]


def _demand(demand: Demand) -> dict[str, Any]:
    user = demand.user
    return {
        "node": node_name(demand.node),
        "op": demand.node.op_type,
        "graph": scope.label(scope.graph_of(demand.node)),
        "needed_by": None if user is None else {"node": node_name(user), "op": user.op_type},
        "why": demand.why,
    }


def _output(saved: Saved) -> dict[str, Any]:
    return {
        "path": None if saved.path is None else str(saved.path),
        "bytes": saved.nbytes,
        "reused": saved.reused,
        "data": None if saved.data_path is None else str(saved.data_path),
    }


def _repair(repair: Repair) -> dict[str, Any]:
    return {
        **rewrite_row(repair.rewrite),
        "left_out": repair.left_out,
        "output": repair.output,
        "error": plain(repair.error),
        "error_before": plain(repair.error_before),
        "reason": one_line(repair.reason),
        "probes": repair.probes,
        "seconds": repair.seconds,
    }


def rewrite_row(rewrite: NumberedRewrite) -> dict[str, Any]:
    """A numbered rewrite as data.

    Args:
        rewrite: The rewrite.
    """
    return {
        "pass": rewrite.transformer,
        "rewrite": rewrite.number,
        "level": rewrite.level,
        "step": rewrite.step,
        "graph": rewrite.graph,
        "nodes": [{"name": name, "op": op} for name, op in rewrite.nodes],
        "why": rewrite.why,
    }


def _passes(result: OptimizeResult) -> list[dict[str, Any]]:
    """Totals by pass, those without a rewrite too: they took time."""
    totals: dict[str, dict[str, Any]] = {}
    for entry in result.history:
        total = totals.setdefault(
            entry.transformer,
            {"pass": entry.transformer, "rewrites": 0, "seconds": 0.0, "runs": 0, "visits": 0, "nodes": 0, "bytes": 0},
        )
        total["rewrites"] += entry.rewrites
        total["seconds"] += entry.seconds
        total["runs"] += 1
        total["visits"] += entry.visits
        total["nodes"] += entry.growth.nodes
        total["bytes"] += entry.growth.nbytes
    return sorted(totals.values(), key=lambda total: (-total["rewrites"], total["pass"]))


def plain(record: Any) -> Any:
    """Data classes and structs as dicts, and enumerations as their values, all the way down."""
    if isinstance(record, enum.Enum):
        return record.value
    if isinstance(record, Struct):
        return {name: plain(getattr(record, name)) for name in record.__struct_fields__}
    if dataclasses.is_dataclass(record):
        return {field.name: plain(getattr(record, field.name)) for field in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): plain(value) for key, value in record.items()}
    if isinstance(record, list | tuple | set | frozenset):
        return [plain(item) for item in record]
    if isinstance(record, float) and not math.isfinite(record):
        return str(record)  # JSON has no such numbers
    return record if isinstance(record, str | int | float | bool | None) else str(record)


# -- for people -------------------------------------------------------------------------------------------------------


def console(stream: IO[str]) -> Console:
    """A console that shows text as it is: no markup, and in pipes no colours and no folding.

    Args:
        stream: stdout or stderr.
    """
    from rich.console import Console
    from rich.theme import Theme

    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, markup=False, emoji=False, highlight=False, width=width, theme=Theme(THEME))


def import_early() -> None:
    """Import what reports are printed with in the background: it runs while the result is on its way to the disk."""

    def load() -> None:
        with contextlib.suppress(Exception):  # whoever prints is told
            import rich.console  # noqa: F401

    with contextlib.suppress(MemoryError):
        BackgroundThread(load, "import of the report")


_SHARE = 0.05
"""The part of a growth from which a second cause is told."""

_WHAT_FOR = {
    "folding": "computed ahead",
    "unrolling": "written out",
    "decomposition": "written out in simpler ops",
    "inlining": "put in place of their calls",
}
"""By the last word of a pass's name, why what it makes is larger."""


_MORE_LOADED = 1.05
"""From how many times its constants on the report tells how much a result's loaded weights are."""


def larger(data: Mapping[str, Any]) -> list[str]:
    """Why a result has more nodes or bytes than its original, or loaded weights: a clause for each; empty without any.

    Args:
        data: From `as_dict`.
    """
    clauses, constants = [], data["constant_bytes"]
    sizes = constants if None in data["file_bytes"].values() else data["file_bytes"]
    if (more := _growth(data["nodes"])) > 0:
        untold = more - sum(total["nodes"] for total in data["passes"])
        conversion = "the conversion to 16 bits" if data["half_precision"] else "the conversion of the opset"
        clauses.append(f"{more} nodes more: {_causes(data, 'nodes', more, str, {conversion: untold})}")
    if (more := _growth(sizes)) > 0 and size(sizes["before"]) != size(sizes["after"]):
        untold = _growth(constants) - sum(total["bytes"] for total in data["passes"])
        others = {"what no pass counts": untold, "names, types and metadata": more - _growth(constants)}
        clauses.append(f"{size(more)} more: {_causes(data, 'bytes', more, size, others)}")
    loaded = data["loaded_bytes"]
    if loaded["after"] > _MORE_LOADED * max(constants["after"], loaded["before"]):
        told = f"once loaded, its weights are {size(loaded['after'])}"
        clauses.append(f"{told}: what is computed of constants alone is computed then")
    return clauses


def _growth(counts: Mapping[str, int]) -> int:
    return counts["after"] - counts["before"]


def _causes(
    data: Mapping[str, Any], what: str, more: int, shown: Callable[[int], str], others: Mapping[str, int]
) -> str:
    """The passes that added most of something, in words; `others` is what else adds to it, and how much."""
    rows = [*((total["pass"], total[what]) for total in data["passes"]), *others.items()]
    first, *rest = sorted((row for row in rows if row[1] > 0), key=lambda row: (-row[1], row[0]))
    told = f"{first[0]} adds {shown(first[1])}{_what_for(first[0], data['options'])}"
    told = first[0] if first[0] in others and first[1] == more else told
    return ", ".join((told, *(f"{name} {shown(added)}" for name, added in rest[:1] if added >= _SHARE * more)))


def _what_for(name: str, options: Mapping[str, Any] | None) -> str:
    """Why what a pass makes is larger, in brackets."""
    phrase = _WHAT_FOR.get(name.rpartition("_")[2], "")
    if phrase == "computed ahead" and options is not None and (options["dims"] or options["input_shapes"]):
        phrase += " for sizes that are fixed"
    return f" ({phrase})" if phrase else ""


def describe_repair(repair: Mapping[str, Any]) -> str:
    """One line on what made the result differ, and what was left out.

    Args:
        repair: A row of ``repairs`` from `as_dict`.
    """
    left_out = f"{repair['pass']} was left out" if repair["left_out"] == "pass" else "that rewrite was left out"
    return f"{describe_rewrite(repair)} made the result differ ({repair['reason']}): {left_out}"


def describe_rewrite(row: Mapping[str, Any]) -> str:
    """A numbered rewrite for people, from ``pass``, ``rewrite``, ``level``, ``step``, ``graph`` and ``nodes``."""
    shown = [f"{node['op']} {quoted(node['name'])}" for node in row["nodes"][:MAX_NODES_SHOWN]]
    more = len(row["nodes"]) - len(shown)
    nodes = ", ".join((*shown, *([f"{more} more"] if more else [])))
    of = f" of {nodes}" if nodes else ""
    where = f"level {row['level']}, step {row['step']}, graph {one_line(row['graph'])}"
    return f"rewrite {row['rewrite']}{of} by {row['pass']} ({where})"


def fused(blocks: Mapping[str, Mapping[str, int]]) -> str:
    """How many of the blocks of each family are one op, e.g. ``24 of 24 attention blocks, 49 of 49 normalizations``.

    Args:
        blocks: By family the numbers of blocks, ``fused`` and ``spelled_out``; families without any are left out.
    """
    parts = [
        f"{count['fused']} of {count['fused'] + count['spelled_out']} {FAMILIES[name].title}"
        for name, count in blocks.items()
        if any(count.values())
    ]
    return ", ".join(parts)


def spread_text(places: int) -> str:
    """How far NaN and infinities have spread, in words.

    Args:
        places: As `Verification.spread`.
    """
    return f"NaN or infinity at {places} place{'' if places == 1 else 's'} beside those of the original"


def of_quantizers(outcome: Mapping[str, Any] | None) -> str:
    """What rounding to few bits does to a quantized model, and how its result compares without; empty of others.

    Args:
        outcome: A `Verification` as plain data.
    """
    if not outcome or not outcome["quantizers"]:
        return ""
    count = outcome["quantizers"]
    text = f"{count} node{' rounds' if count == 1 else 's round'} to few bits"
    moved = [row for row in outcome["outputs"] if isinstance(row["noise"], float)]
    if moved:
        most = max(moved, key=lambda row: float(row["noise"]))
        text += f", whose steps move output {quoted(most['name'])} by up to {most['noise']:.2g} of its scale"
    if outcome["not_unrounded"]:
        return f"{text}; not compared without rounding: {one_line(outcome['not_unrounded'])}"
    if outcome["unrounded"] is None:
        return text
    error = outcome["unrounded"]
    return f"{text}; without rounding, the worst error is {error if isinstance(error, str) else f'{error:.2g}'}"


def of_deployment(outcome: Mapping[str, Any] | None) -> str:
    """How a result compares as ONNX Runtime loads it by default; empty where that was not asked for.

    Args:
        outcome: A `Verification` as plain data.
    """
    if not outcome or (outcome["as_deployed"] is None and not outcome["not_as_deployed"]):
        return ""
    words = {True: "verified", False: "differs", None: "not compared"}[outcome["as_deployed"]]
    reason = f"; {one_line(outcome['not_as_deployed'])}" if outcome["not_as_deployed"] else ""
    return f"{words} with ONNX Runtime's default optimizations{reason}"


def of_runtimes(outcome: Mapping[str, Any] | None, *, agrees: bool = True) -> list[str]:
    """How a result compares on other runtimes that were asked for, a line each.

    Args:
        outcome: A `Verification` as plain data.
        agrees: Whether those on which it agrees are told, too.
    """
    words = {True: "verified", False: "differs", None: "not compared"}
    return [
        f"{words[one['agrees']]} on {one['runtime']}{'; ' + one_line(one['reason']) if one['reason'] else ''}"
        for one in (outcome or {}).get("elsewhere", ())
        if agrees or not one["agrees"]
    ]


def beside_verdict(outcome: Mapping[str, Any] | None) -> Iterable[str]:
    """What is said of a verification beside its verdict, a line each: of quantizers, as deployed, elsewhere.

    Args:
        outcome: A `Verification` as plain data.
    """
    if quantized := of_quantizers(outcome):
        yield f"quantized: {quantized}"
    if deployed := of_deployment(outcome):
        yield f"as deployed: {deployed}"
    for there in of_runtimes(outcome):
        yield f"on another runtime: {there}"


def size(nbytes: int) -> str:
    """A number of bytes for people, e.g. ``27.1 MB``."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
