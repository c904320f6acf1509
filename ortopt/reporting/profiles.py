"""Where the time of a model goes, original and result side by side, and what could have been done about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ortopt.graph import scope
from ortopt.measurement.profiling import Profile
from ortopt.reporting import layer_times, reasons
from ortopt.reporting.tables import say, table
from ortopt.terminal_text import faster, node_name, one_line

if TYPE_CHECKING:
    import onnx_ir as ir
    from rich.console import Console

    from ortopt.instrumentation.explanation import Explanation

_HOT_SHARE: Final = 0.05
"""The part of a call from which an op is worth a look."""

_HOT_OPS: Final = 5
_REASONS: Final = 3
_NOTHING: Final = "no pass that ran has looked at it: what is left is its kernel's own work"


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
    """The ops that take most time in a result, and why the passes that looked at their nodes left them alone."""
    nodes: dict[str, set[str]] = {}
    for graph in scope.graphs(model):
        for node in graph:
            nodes.setdefault(node.op_type, set()).add(node_name(node))
    rows = []
    for hot in [row for row in result.ops if row.share >= _HOT_SHARE][:_HOT_OPS]:
        op_type = hot.op.rpartition("::")[2]
        there = nodes.get(op_type, set())
        refusals = [one for one in listener.refusals if one.op == op_type and one.node in there]
        rows.append({**dataclasses.asdict(hot), "nodes": len(there), "reasons": reasons.by_pass(refusals)})
    return rows


def show(data: Mapping[str, Any], out: Console) -> None:
    """Print profiles.

    Args:
        data: From `describe`.
        out: The console to print to.
    """
    headers = ("op", "original, ms", "share before", "result, ms", "share after", "change")
    out.print(table(headers, _rows(data), spare=("share before", "share after")))
    out.print()
    for line in _lines(data):
        say(out, line)


def _rows(data: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    before = {row["op"]: row for row in data["original"]}
    after = {row["op"]: row for row in data["result"] or []}
    every = sorted({*before, *after}, key=lambda op: (-max(_ms(before, op), _ms(after, op)), op))
    for op in every:
        yield (one_line(op), *_cells(before.get(op)), *_cells(after.get(op)), _change(data, before, after, op))
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
        said = ", ".join(f"{one_line(row['op'])} {row['file']} → {row['loaded']}" for row in changed)
        yield f"when it loads the {name}, ONNX Runtime changes: {said}"
    for row in data["left"]:
        yield ""
        yield f"{one_line(row['op'])} takes {row['share']:.0%} of the result's time ({row['nodes']} nodes in the file):"
        if not row["nodes"]:
            yield "  ONNX Runtime makes it when it loads the file"
        elif not row["reasons"]:
            yield f"  {_NOTHING}"
        for reason in row["reasons"][:_REASONS]:
            yield f"  {reason['pass']} ({reason['count']} candidates): {one_line(reason['reason'])}"
        if len(row["reasons"]) > _REASONS:
            yield f"  {len(row['reasons']) - _REASONS} more reasons (all of them in the report as data)"
