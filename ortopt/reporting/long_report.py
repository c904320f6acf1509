"""The whole report of a run on a terminal: tables of sizes, ops and passes, and what there is to say, line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortopt.analysis.costs import in_sizes
from ortopt.analysis.releases import of_runtime, parse_release
from ortopt.reporting import half_precision
from ortopt.reporting.costs import table_in_words
from ortopt.reporting.interface import changes
from ortopt.reporting.report import beside_verdict, describe_repair, fused, size, spread_text
from ortopt.reporting.tables import FittingTable, Style, say, table
from ortopt.reporting.tuning import tuning_lines
from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    from rich.console import Console


def show(data: Mapping[str, Any], out: Console, *, everything: bool = False) -> None:
    """Print a report.

    Args:
        data: From `ortopt.reporting.report.as_dict`, with the fields of `ortopt.reporting.tuning`, or without.
        out: The console to print to.
        everything: Whether passes that changed nothing are listed too.
    """
    for line in tuning_lines(data.get("tuning")):  # before the report, whose last line says it all
        say(out, line)
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
    rows = [("nodes", *change(data["nodes"])), ("initializers", *change(data["initializers"]))]
    if any(data["functions"].values()):
        rows.append(("functions", *change(data["functions"])))
    rows.append(("constants", *change(data["constant_bytes"], size)))
    if None not in data["file_bytes"].values():
        rows.append(("file", *change(data["file_bytes"], size)))
    return table(("", "before", "after", "change"), rows, styles=map(_colour, rows))


def _ops(by_op: Mapping[str, Mapping[str, int]]) -> FittingTable:
    def rank(item: tuple[str, Mapping[str, int]]) -> tuple[int, int, str]:
        op, counts = item
        return -abs(counts["after"] - counts["before"]), -counts["before"], op

    rows = [(op, *change(counts)) for op, counts in sorted(by_op.items(), key=rank)]
    return table(("op", "before", "after", "change"), rows, styles=map(_colour, rows))


def _colour(row: tuple[str, ...]) -> str:
    """The style of a row by its change: less is good, more is worse."""
    return {"-": Style.GOOD, "+": Style.WORSE}.get(row[-1][:1], Style.PLAIN)


def change(counts: Mapping[str, int], shown: Any = str) -> tuple[str, str, str]:
    """A count before and after a run, and by how much it has changed, as cells of a table.

    Args:
        counts: ``before`` and ``after``.
        shown: Makes a text of a count.
    """
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
    yield from _shape_arithmetic(data["shape_arithmetic"])
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
    undone = not_done(data)
    yield f"fixed point: {f'not reached, {undone}' if undone else 'reached'}"
    yield f"verification: {_verification(data)}"
    yield from beside_verdict(data["verification"])
    for clause in data["larger"]:
        yield f"larger: {clause}"
    yield f"needs: {needs(data)}"
    if assumed := assumption(data):
        yield f"assumes: {assumed}"
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
        data: From `ortopt.reporting.report.as_dict`.
    """
    nodes, sizes = data["nodes"], data["file_bytes"]
    bytes_ = " → ".join(size(sizes[key]) for key in ("before", "after") if sizes[key] is not None)
    counts = f"{nodes['before']} → {nodes['after']} nodes"
    return ", ".join((counts, bytes_, how_far(data), _needs_in_short(data)))


def how_far(data: Mapping[str, Any]) -> str:
    """Whether a result is verified, and how far it may be off.

    Args:
        data: From `ortopt.reporting.report.as_dict`.
    """
    outcome = data["verification"]
    if outcome is None or not data["verified"]:
        return "not verified"
    names = [name.removesuffix("ExecutionProvider") for name in data["verified_on"]]
    where = f"verified on {' and '.join(data['verified_with'])} ({', '.join(names)}"
    worst = outcome["worst"]
    if worst == 0 or not outcome["outputs"]:
        return f"{where}; no difference)"
    text = f"{where}; differs by at most {worst if isinstance(worst, str) else f'{worst:.1g}'} of an output's scale"
    return f"{text}, by steps of its own quantization)" if is_quantization_error(outcome) else f"{text})"


def is_quantization_error(outcome: Mapping[str, Any]) -> bool:
    """Whether what differs most does so only where the original rounds to few bits.

    Args:
        outcome: A `Verification` as plain data.
    """
    worst = outcome["worst"]
    return outcome["unrounded"] is not None and isinstance(worst, float) and worst > outcome["unrounded"]


def _needs_in_short(data: Mapping[str, Any]) -> str:
    requires = data["requires"]
    first, original = requires["onnxruntime"], requires["original"]
    if first is None:
        return f"needs a runtime that has {', '.join(map(one_line, requires['ops']))}"
    newer = original is not None and parse_release(first) > parse_release(original)
    before = f" (the original {original})" if newer else ""
    if requires["with_nothing"] is not None:
        before += f", {requires['with_nothing']} where a batch or a length may be 0"
    not_run = "; not run there" if is_not_run_there(data) else ""
    if requires["any_runtime"]:
        return f"has standard ops only, ONNX Runtime ≥ {first} reads them{before}{not_run}"
    return f"needs ONNX Runtime ≥ {first} for {because(data)}{before}{not_run}"


def is_not_run_there(data: Mapping[str, Any]) -> bool:
    """Whether a result was verified, on newer releases of ONNX Runtime than the first one that reads it."""
    first = data["requires"]["onnxruntime"]
    ran = [of_runtime(name) for name in data["verified_with"] if name.startswith("ONNX Runtime")]
    return bool(first is not None and ran) and min(ran) > parse_release(first)


MAX_REASONS = 8
"""How many reasons are shown why shape arithmetic is left; the data has all."""


def _shape_arithmetic(left: list[dict[str, Any]]) -> Iterable[str]:
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


def not_done(data: Mapping[str, Any]) -> str:
    """Why a run ended before nothing was left to do; empty where nothing was.

    Args:
        data: From `ortopt.reporting.report.as_dict`.
    """
    if data["stopped"]:
        return "stopped by the time limit"
    if data["bound_reached"]:
        levels = ", ".join(map(str, data["bound_reached"]))
        return f"level {levels} ended at the bound of steps (see --steps) or of rewrites"
    return ""


MAX_OPS = 3
"""How many ops a line names; the data has all."""


def needs(data: Mapping[str, Any]) -> str:
    """What a result needs to be loaded, and what in it needs that.

    Args:
        data: From `ortopt.reporting.report.as_dict`.
    """
    requires = data["requires"]
    first, own = requires["onnxruntime"], some(requires["ops"])
    if first is None:
        return f"a runtime that has {own}"
    if requires["any_runtime"]:
        return f"standard ops only (ONNX Runtime {first} or newer, for {because(data)})"
    return f"ONNX Runtime {first} or newer, for {because(data)}; it has ops of ONNX Runtime's own: {own}"


def assumption(data: Mapping[str, Any]) -> str:
    """Which sizes of inputs are never 0, as the caller has said; empty where he has said it of none."""
    names = (data["options"] or {}).get("nonempty")
    return f"no size {some(names)} of an input is 0 (--nonempty)" if names else ""


def because(data: Mapping[str, Any]) -> str:
    """What in a result no older release of ONNX Runtime reads: ``opset 23, raised from 17``, ops, or an IR version.

    Args:
        data: From `ortopt.reporting.report.as_dict`.
    """
    reasons, (old, new) = data["requires"]["because"], (data["opset"][when] for when in ("before", "after"))
    is_raised = old is not None and old != new and f"opset {new}" in reasons
    return f"{some(reasons)}, raised from {old}" if is_raised else some(reasons)


def some(ops: Sequence[str]) -> str:
    """The first of some ops, and how many more there are."""
    more = len(ops) - MAX_OPS
    return f"{', '.join(map(one_line, ops[:MAX_OPS]))}{f' and {more} more' if more > 0 else ''}"


def worst_error(outcome: Mapping[str, Any]) -> str:
    """The worst error of a result, and where it is.

    Args:
        outcome: A `Verification` as plain data, with outputs.
    """
    worst = outcome["worst"]
    shown = worst if isinstance(worst, str) else f"{worst:.2g}"
    return f"worst error {shown} of the scale of output {quoted(outcome['worst_output'])}"


def _verification(data: Mapping[str, Any]) -> str:
    outcome, options = data["verification"], data["options"]
    if outcome is None:
        return "not asked for"
    parts = [outcome["status"]]
    if outcome["outputs"]:
        parts.append(worst_error(outcome))
    if outcome["spread"]:
        parts.append(spread_text(outcome["spread"]))
    if options is not None and list(options["providers"]) != data["verified_on"]:
        parts.append(f"on {', '.join(data['verified_on'])}, for {', '.join(options['providers'])}")
    return ", ".join((*parts, *filter(None, (one_line(outcome["reason"]),))))
