"""Where the time of a model goes, original and result side by side, and what could have been done about it."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ortopt.graph import scope
from ortopt.graph.refusal import Code
from ortopt.measurement.profiling import OpTime, Profile
from ortopt.reporting import layer_times, reasons
from ortopt.reporting.tables import say, table
from ortopt.terminal_text import faster, node_name, one_line

if TYPE_CHECKING:
    import onnx_ir as ir
    from rich.console import Console

    from ortopt.instrumentation.explanation import Explanation

_SLOW_SHARE: Final = 0.8
"""The part of a call that the slow ops make up together."""

_WORTH_A_LOOK: Final = 0.05
"""The part of a call from which an op may be one of them."""

_SLOW_OPS: Final = 3
_REASONS: Final = 2
"""Reasons that are shown of the slowest op; one of each other."""

_ROWS: Final = 7
_AT_LOAD: Final = 3
_REASON_LENGTH: Final = 90
"""Characters of a reason that are shown, without what an option would do about it."""

_NOTHING: Final = "no pass that looked at it finds what it is for: what is left is its kernel's own work"


def describe(
    original: Profile, result: Profile | None, model: ir.Model | None = None, listener: Explanation | None = None
) -> dict[str, Any]:
    """Two profiles as data that json can write.

    Args:
        original: The original's.
        result: The result's; None where there is none.
        model: The result.
        listener: Listened to the run that made the result.
    """
    both = {"original": original, "result": result}
    return {
        **{name: None if one is None else [dataclasses.asdict(row) for row in one.ops] for name, one in both.items()},
        "layers": layer_times.joined(original.layers, None if result is None else result.layers),
        "fused_at_load": {name: None if one is None else _changed_at_load(one) for name, one in both.items()},
        "left": [] if result is None or model is None or listener is None else _left(result, model, listener),
    }


def _changed_at_load(profile: Profile) -> list[dict[str, Any]]:
    """The ops that ONNX Runtime made or took away when it loaded a file."""
    changed = profile.changed_at_load.items()
    rows = [{"op": op, "file": before, "loaded": after} for op, (before, after) in changed]
    return sorted(rows, key=lambda row: (row["file"] - row["loaded"], row["op"]))


def _left(result: Profile, model: ir.Model, listener: Explanation) -> list[dict[str, Any]]:
    """The ops that make up most of a result's time, and why the passes that looked at their nodes left them alone."""
    nodes: dict[str, set[str]] = {}
    for graph in scope.graphs(model):
        for node in graph:
            nodes.setdefault(node.op_type, set()).add(node_name(node))
    rows = []
    for hot in _slow(result):
        op_type = hot.op.rpartition("::")[2]
        there = nodes.get(op_type, set())
        refusals = [one for one in listener.refusals if one.op == op_type and one.node in there]
        present = [one for one in refusals if one.code is not Code.ABSENT]
        told = {"reasons": reasons.by_pass(refusals), "relevant": len(reasons.by_pass(present))}
        rows.append({**dataclasses.asdict(hot), "nodes": len(there), **told})
    return rows


def _slow(profile: Profile) -> Iterator[OpTime]:
    """The ops that make up most of the time, the slowest first."""
    covered = 0.0
    for row in itertools.islice(profile.ops, _SLOW_OPS):
        if covered >= _SLOW_SHARE or row.share < _WORTH_A_LOOK:
            return
        covered += row.share
        yield row


def show(data: Mapping[str, Any], out: Console) -> None:
    """Print profiles.

    Args:
        data: From `describe`; with what was measured with, where nobody else says it.
        out: The console to print to.
    """
    for line in data.get("measured_with", ()):
        say(out, line)
    headers = ("op", "original, ms", "share", "result, ms", "share after", "change")
    out.print(table(headers, [*_rows(data)], spare=("share", "share after")))
    out.print()
    for line in _lines(data):
        say(out, line)


def _rows(data: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    before = {row["op"]: row for row in data["original"]}
    after = {row["op"]: row for row in data["result"] or []}
    every = sorted({*before, *after}, key=lambda op: (-max(_ms(before, op), _ms(after, op)), op))
    shown, others = every[:_ROWS], every[_ROWS:]
    if len(others) == 1:
        shown, others = every, []
    for op in shown:
        yield (_short(op, every), *_cells(before.get(op)), *_cells(after.get(op)), _change(data, before, after, op))
    if others:
        sums = [[rows[op] for op in others if op in rows] for rows in (before, after)]
        yield (f"{len(others)} other ops", *_cells(_sum(sums[0])), *_cells(_sum(sums[1])), "")
    whole = [sum(_ms(rows, op) for op in rows) for rows in (before, after)]
    ratio = "" if data["result"] is None or not whole[1] else faster(whole[0] / whole[1])
    yield ("all kernels", f"{whole[0]:.3f}", "", "" if data["result"] is None else f"{whole[1]:.3f}", "", ratio)


def _change(data: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], op: str) -> str:
    if data["result"] is None:
        return ""
    if op not in before or op not in after:
        return "new" if op in after else "gone"
    old, new = _ms(before, op), _ms(after, op)
    return faster(old / new) if old > 0 and new > 0 else ""


def _ms(rows: Mapping[str, Any], op: str) -> float:
    return float(rows[op]["ms"]) if op in rows else 0.0


def _short(op: str, every: Collection[str]) -> str:
    """An op without its domain, unless another one has its name."""
    name = op.rpartition("::")[2]
    alike = sum(other.rpartition("::")[2] == name for other in every)
    return one_line(op if alike > 1 else name)


def _sum(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    return {key: sum(row[key] for row in rows) for key in ("ms", "share")} if rows else None


def _cells(row: Mapping[str, Any] | None) -> tuple[str, str]:
    return ("", "") if row is None else (f"{row['ms']:.3f}", f"{row['share']:.0%}")


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    for name in ("original", "result"):
        changed = data["fused_at_load"][name]
        if changed is None:
            continue
        if not changed:
            yield f"ONNX Runtime leaves the {name} as it is when it loads it"
            continue
        yield f"when it loads the {name}, ONNX Runtime {_changes(changed)}"
    for number, row in enumerate(data["left"]):
        if not number:
            yield ""
        nodes = f"{row['nodes']} node{'' if row['nodes'] == 1 else 's'} in the file"
        yield f"{_short(row['op'], ())} takes {row['share']:.0%} of the result's time ({nodes}):"
        if not row["nodes"]:
            yield "  ONNX Runtime makes it when it loads the file"
        elif not row["relevant"]:
            yield f"  {_NOTHING}"
        shown = min(row["relevant"], 1 if number else _REASONS)
        for reason in row["reasons"][:shown]:
            yield f"  {reason['pass']} (at {reason['count']}): {_brief(reason['reason'])}"
    if any(row["relevant"] for row in data["left"]):
        yield "all reasons in full: --json, or ortopt explain MODEL PASS for those of one pass"


def _brief(reason: str) -> str:
    """A reason that is shortened between words; what stands behind its last semicolon stays: an option, most often."""
    said, _, remedy = one_line(reason).rpartition("; ")
    if not said:
        said, remedy = remedy, ""
    return textwrap.shorten(said, _REASON_LENGTH, placeholder=" …") + (f"; {remedy}" if remedy else "")


def _changes(changed: Sequence[Mapping[str, Any]]) -> str:
    """What ONNX Runtime makes of a file: the ops that it adds, and how many nodes go."""
    every = [row["op"] for row in changed]
    made = [row for row in changed if row["loaded"] > row["file"]]
    names = [f"{row['loaded'] - row['file']} {_short(row['op'], every)}" for row in made[:_AT_LOAD]]
    more = len(made) - _AT_LOAD
    names += [f"nodes of {more} other op{'' if more == 1 else 's'}"] if more > 0 else []
    gone = sum(row["file"] - row["loaded"] for row in changed if row["loaded"] < row["file"])
    said = [f"makes {', '.join(names)}"] if names else []
    said += [f"takes {gone} node{'' if gone == 1 else 's'} out"] if gone else []
    return " and ".join(said)
