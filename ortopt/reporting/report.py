"""What a run did: as plain data for machines, and as tables for people."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct

import ortopt
from ortopt.analysis import providers, targets
from ortopt.analysis.blocks import FAMILIES
from ortopt.analysis.costs import in_sizes
from ortopt.analysis.releases import Requirement, parse_release
from ortopt.analysis.shape_demand import Demand, demands
from ortopt.api import ModelFigures, OptimizeResult, Repair, SizeRefusal
from ortopt.errors import TransformerError
from ortopt.graph import scope
from ortopt.interface.ports import as_data
from ortopt.options import Numerics
from ortopt.reporting import half_precision
from ortopt.reporting.costs import fused_forms, table_in_words
from ortopt.reporting.interface import changes
from ortopt.reporting.tables import FittingTable, say, table
from ortopt.semantics.op_traits import SHAPE_QUERIES
from ortopt.serialization.load import SOURCE_KEY
from ortopt.system.threads import BackgroundThread
from ortopt.terminal_text import node_name, one_line, quoted

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.optimization.missing_providers import NotShown
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
    summary = result.summary
    origin, graph = result.model.meta.get(SOURCE_KEY), result.model.graph
    return {
        "schema": SCHEMA,
        "ortopt": ortopt.__version__,
        "input": source,
        "output": None if saved is None else _output(saved),
        "options": None if options is None else plain(options),
        **_changes(summary.before, summary.after),
        "replaceable_weights": sum(value.name in graph.initializers for value in graph.inputs),
        "requires": _requirements(summary.requires, summary.required),
        "runs_on": None if options is None else targets.described(options.target),
        "file_bytes": {"before": origin and origin.nbytes, "after": saved and saved.nbytes},
        "rewrites": summary.rewrites,
        "passes": _passes(result),
        "numerics": [
            {"pass": total.transformer, "numerics": total.numerics.value, "error_bound": total.error_bound}
            for total in summary.passes
            if total.numerics in (Numerics.BOUNDED, Numerics.FINITE)
        ],
        "failures": [_failure(error) for error in summary.failures],
        "shape_arithmetic": shape_arithmetic(result),
        "repairs": [_repair(repair) for repair in result.repairs],
        "interface": as_data(result.interface),
        "half_precision": half_precision.as_data(result.half_precision),
        "costs": fused_forms(result, options),
        "too_large": [_size_refusal(refusal) for refusal in summary.too_large],
        "fixed_point": not summary.bound_reached and not result.stopped,
        "bound_reached": list(summary.bound_reached),
        "stopped": result.stopped,
        "verified": result.verified,
        "verified_on": list(result.verified_on),
        "verified_with": _runtimes(result),
        "not_shown": None if result.not_shown is None else _not_shown(result.not_shown),
        "verification": None if result.verification is None else plain(result.verification),
        "seconds": {**summary.seconds, **(seconds or {})},
        "profile": profile,
        "error": error,
    }


def _runtimes(result: OptimizeResult) -> list[str]:
    """The runtimes on which a result was shown to agree, with their releases: the one that is installed first."""
    if not result.verified or result.verification is None:
        return []
    others = (one.runtime for one in result.verification.elsewhere if one.agrees)
    return list(dict.fromkeys((f"ONNX Runtime {providers.installed_version()}", *others)))


def _not_shown(hidden: NotShown) -> dict[str, Any]:
    return {"nodes": hidden.nodes, "ops": dict(hidden.ops), "passes": list(hidden.transformers)}


def _size_refusal(refusal: SizeRefusal) -> dict[str, Any]:
    return {"pass": refusal.transformer, "count": refusal.count, "bytes": refusal.nbytes}


def _requirements(requires: Requirement, required: Requirement) -> dict[str, Any]:
    return {
        "onnxruntime": requires.onnxruntime,
        "original": required.onnxruntime,
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
        "blocks": {
            name: {"before": plain(before.blocks[name]), "after": plain(after.blocks[name])} for name in after.blocks
        },
    }


def _failure(error: TransformerError) -> dict[str, Any]:
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
            entry.transformer, {"pass": entry.transformer, "rewrites": 0, "seconds": 0.0, "runs": 0, "visits": 0}
        )
        total["rewrites"] += entry.rewrites
        total["seconds"] += entry.seconds
        total["runs"] += 1
        total["visits"] += entry.visits
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

    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, markup=False, emoji=False, highlight=False, width=width)


def import_early() -> None:
    """Import what reports are printed with in the background: it runs while the result is on its way to the disk."""

    def load() -> None:
        with contextlib.suppress(Exception):  # whoever prints is told
            import rich.console
            import rich.table  # noqa: F401

    with contextlib.suppress(MemoryError):
        BackgroundThread(load, "import of the report")


def show(data: Mapping[str, Any], out: Console, *, everything: bool = False) -> None:
    """Print a report.

    Args:
        data: From `as_dict`.
        out: The console to print to.
        everything: Whether passes that changed nothing are listed too.
    """
    out.print(_sizes(data))
    out.print()
    out.print(_ops(data["nodes"]["by_op"]))
    out.print()
    if data["passes"]:
        out.print(_pass_table(data["passes"], everything))
        out.print()
    if data["profile"] is not None:
        from ortopt.reporting import profiles

        profiles.show(data["profile"], out)
        out.print()
    for line in _last_lines(data):
        say(out, line)


def _sizes(data: Mapping[str, Any]) -> FittingTable:
    rows = [("nodes", *_change(data["nodes"])), ("initializers", *_change(data["initializers"]))]
    if any(data["functions"].values()):
        rows.append(("functions", *_change(data["functions"])))
    rows.append(("constants", *_change(data["constant_bytes"], size)))
    if None not in data["file_bytes"].values():
        rows.append(("file", *_change(data["file_bytes"], size)))
    return table(("", "before", "after", "change"), rows, styles=map(_colour, rows))


def _ops(by_op: Mapping[str, Mapping[str, int]]) -> FittingTable:
    def rank(item: tuple[str, Mapping[str, int]]) -> tuple[int, int, str]:
        op, counts = item
        return -abs(counts["after"] - counts["before"]), -counts["before"], op

    rows = [(op, *_change(counts)) for op, counts in sorted(by_op.items(), key=rank)]
    return table(("op", "before", "after", "change"), rows, styles=map(_colour, rows))


def _colour(row: tuple[str, ...]) -> str:
    """The style of a row by its change: less is green, more is yellow, the same is dim."""
    return {"-": "green", "+": "yellow"}.get(row[-1][:1], "dim")


def _change(counts: Mapping[str, int], shown: Any = str) -> tuple[str, str, str]:
    difference = counts["after"] - counts["before"]
    sign = "-" if difference < 0 else "+"
    return shown(counts["before"]), shown(counts["after"]), f"{sign}{shown(abs(difference))}" if difference else ""


_FINITE = "a NaN or an infinity may spread to its neighbours; finite numbers are rounded at most (--no-finite-math)"


def _pass_table(passes: list[dict[str, Any]], everything: bool) -> FittingTable:
    busy = [total for total in passes if total["rewrites"] or everything]
    rows = [(total["pass"], total["rewrites"], f"{total['seconds']:.3f}") for total in busy]
    idle = [total for total in passes if total not in busy]
    if idle:
        rows.append((f"({len(idle)} more, nothing to do)", 0, f"{sum(total['seconds'] for total in idle):.3f}"))
    return table(("pass", "rewrites", "seconds"), rows)


def _last_lines(data: Mapping[str, Any]) -> Iterable[str]:
    for failure in data["failures"]:
        where = f"level {failure['level']}, step {failure['step']}, graph {one_line(failure['graph'])}"
        yield f"left out: {failure['pass']} failed at {where}: {failure['reason']}"
    yield from _left(data["shape_arithmetic"])
    if any(counts["after"][kind] for counts in data["blocks"].values() for kind in counts["after"]):
        yield f"fused: {fused({name: counts['after'] for name, counts in data['blocks'].items()})}"
    for repair in data["repairs"]:
        yield f"repaired: {describe_repair(repair)}"
    for refusal in data["too_large"]:
        candidates = f"{refusal['count']} candidates of {refusal['pass']}"
        growth = f"would have added {size(refusal['bytes'])}, more than --max-growth allows"
        yield f"left as it was: {candidates} {growth}"
    if replaceable := data["replaceable_weights"]:
        what = "weights are inputs" if replaceable > 1 else "weight is an input"
        told = "which a caller may replace; --freeze-initializers makes constants of them"
        yield f"left as it was: {replaceable} {what}, too, {told}"
    for row in data["numerics"]:
        yield f"numbers: {row['pass']}: {row['error_bound'] or _FINITE}"
    yield from (f"interface: {line}" for line in changes(data["interface"]))
    yield from half_precision.lines(data["half_precision"])
    yield f"costs: {table_in_words(data['costs'])}{_expected(data['options'])}"
    yield f"fixed point: {_fixed_point(data)}"
    yield f"verification: {_verification(data)}"
    yield from beside_verdict(data["verification"])
    yield f"needs: {_needs(data['requires'])}"
    if there := data["runs_on"]:
        yield f"for: {there['runtime']} (--target {there['target']}); what it runs {there['known']}"
    yield "seconds: " + ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in data["seconds"].items())
    output = data["output"]
    if output is None:
        yield f"written: nothing{': ' + data['error'] if data['error'] else ''}"
        return
    beside = f" with {one_line(output['data'])}" if output["data"] else ""
    yield f"written: {one_line(output['path'] or 'stdout')}{beside}: {in_short(data)}"


def _expected(options: Mapping[str, Any] | None) -> str:
    """For which sizes forms were chosen, where the caller said so."""
    expected = {} if options is None else options.get("dim_hints") or {}
    return f", for {in_sizes({name: tuple(extent) for name, extent in expected.items()})}" if expected else ""


def in_short(data: Mapping[str, Any]) -> str:
    """What a run did in one line: nodes, size, whether the result is verified and how far, and what it needs.

    Args:
        data: From `as_dict`.
    """
    nodes, sizes = data["nodes"], data["file_bytes"]
    bytes_ = " → ".join(size(sizes[key]) for key in ("before", "after") if sizes[key] is not None)
    return ", ".join((f"{nodes['before']} → {nodes['after']} nodes", bytes_, _how_far(data), _needs_in_short(data)))


def _how_far(data: Mapping[str, Any]) -> str:
    """Whether a result is verified, and how far it may be off."""
    outcome = data["verification"]
    if outcome is None or not data["verified"]:
        return "not verified"
    names = [name.removesuffix("ExecutionProvider") for name in data["verified_on"]]
    where = f"verified on {' and '.join(data['verified_with'])} ({', '.join(names)}"
    worst = outcome["worst"]
    if worst == 0 or not outcome["outputs"]:
        return f"{where}; no difference)"
    text = f"{where}; differs by at most {worst if isinstance(worst, str) else f'{worst:.1g}'} of an output's scale"
    own = outcome["unrounded"] is not None and isinstance(worst, float) and worst > outcome["unrounded"]
    return f"{text}, by steps of its own quantization)" if own else f"{text})"


def _needs_in_short(data: Mapping[str, Any]) -> str:
    requires = data["requires"]
    first, original = requires["onnxruntime"], requires["original"]
    if first is None:
        return f"needs a runtime that has {', '.join(map(one_line, requires['ops']))}"
    newer = original is not None and parse_release(first) > parse_release(original)
    before = f" (the original {original})" if newer else ""
    what = "has standard ops only, ONNX Runtime" if requires["any_runtime"] else "by its ops it needs ONNX Runtime"
    reads = " reads them" if requires["any_runtime"] else ""
    ran = [parse_release(name.split()[-1]) for name in data["verified_with"] if name.startswith("ONNX Runtime")]
    not_run = "; not run there" if ran and min(ran) > parse_release(first) else ""
    return f"{what} ≥ {first}{reads}{before}{not_run}"


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


MAX_REASONS = 8
"""How many reasons are shown why shape arithmetic is left; the data has all."""


def _left(left: list[dict[str, Any]]) -> Iterable[str]:
    """Why shape arithmetic is left, the most frequent reasons first."""
    if not left:
        return
    reasons = Counter(node["why"] for node in left)
    yield f"shape arithmetic: {len(left)} nodes are left"
    for why, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS]:
        yield f"  {count}: {one_line(why)}"
    if len(reasons) > MAX_REASONS:
        others = sum(sorted(reasons.values())[:-MAX_REASONS])
        yield f"  {others}: {len(reasons) - MAX_REASONS} other reasons (all of them with --json)"


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


def _fixed_point(data: Mapping[str, Any]) -> str:
    if data["stopped"]:
        return "not reached, stopped by the time limit"
    if data["bound_reached"]:
        levels = ", ".join(map(str, data["bound_reached"]))
        return f"not reached, level {levels} ended at the bound of steps (see --steps) or of rewrites"
    return "reached"


def _needs(requires: Mapping[str, Any]) -> str:
    first, own = requires["onnxruntime"], ", ".join(map(one_line, requires["ops"]))
    if first is None:
        return f"a runtime that has {own}"
    if requires["any_runtime"]:
        return f"standard ops of its opset only (ONNX Runtime {first} or newer)"
    return f"ONNX Runtime {first} or newer (for {own})"


def _verification(data: Mapping[str, Any]) -> str:
    outcome, options = data["verification"], data["options"]
    if outcome is None:
        return "not asked for"
    parts = [outcome["status"]]
    if outcome["outputs"]:
        worst = outcome["worst"]
        shown = worst if isinstance(worst, str) else f"{worst:.2g}"
        parts.append(f"worst error {shown} of the scale of output {quoted(outcome['worst_output'])}")
    if outcome["spread"]:
        parts.append(spread_text(outcome["spread"]))
    if options is not None and list(options["providers"]) != data["verified_on"]:
        parts.append(f"on {', '.join(data['verified_on'])}, for {', '.join(options['providers'])}")
    return ", ".join((*parts, *filter(None, (one_line(outcome["reason"]),))))


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


def of_runtimes(outcome: Mapping[str, Any] | None) -> list[str]:
    """How a result compares on other runtimes that were asked for, a line each.

    Args:
        outcome: A `Verification` as plain data.
    """
    words = {True: "verified", False: "differs", None: "not compared"}
    return [
        f"{words[one['agrees']]} on {one['runtime']}{'; ' + one_line(one['reason']) if one['reason'] else ''}"
        for one in (outcome or {}).get("elsewhere", ())
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
