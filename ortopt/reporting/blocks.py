"""What became of the blocks of one family: the op that stands for each, or why there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortopt.analysis.attention_facts import facts_of
from ortopt.analysis.blocks import FAMILIES, Block, blocks
from ortopt.graph import scope
from ortopt.graph.index import op_key
from ortopt.graph.refusal import Code
from ortopt.instrumentation.explanation import Explanation
from ortopt.reporting.reasons import as_data
from ortopt.reporting.tables import say, table
from ortopt.terminal_text import node_name, one_line

if TYPE_CHECKING:
    from rich.console import Console

NOT_LOOKED_AT = "no pass that ran has looked at it"


def describe(model: ir.Model, listener: Explanation, family: str, passes: Iterable[str], level: int) -> dict[str, Any]:
    """The blocks of one family in a result, as data that json can write.

    Args:
        model: The result.
        listener: Listened to the run.
        family: The family's name.
        passes: Names of the passes that make ops of the family, in the order in which their reasons count.
        level: The highest level that ran.
    """
    order = list(passes)
    found = [_row(block, listener, order) for block in blocks(model, family)]
    fused = sum(row["fused"] for row in found)
    return {
        "schema": 1,
        "family": family,
        "level": level,
        "fused": fused,
        "spelled_out": len(found) - fused,
        "blocks": found,
    }


def _row(block: Block, listener: Explanation, order: list[str]) -> dict[str, Any]:
    node = block.node
    facts = dataclasses.asdict(facts_of(block)) if block.family == "attention" else {}
    return {
        "node": node_name(node),
        "op": op_key(node.domain, node.op_type),
        "graph": scope.label(scope.graph_of(node)),
        "fused": block.fused,
        **facts,
        "reasons": [] if block.fused else _reasons(block, listener, order),
    }


def _reasons(block: Block, listener: Explanation, order: list[str]) -> list[dict[str, str]]:
    """Why the passes have left it, the nodes where it ends first."""
    refusals = [refusal for end in FAMILIES[block.family].ends(block.node) for refusal in listener.refusals_of(end)]
    counting = sorted(
        (one for one in refusals if one.transformer in order), key=lambda one: order.index(one.transformer)
    )
    return [{"pass": one.transformer, "node": one.node, "op": one.op, **as_data(one.reason)} for one in counting]


def show(data: Mapping[str, Any], out: Console) -> None:
    """Print what became of the blocks.

    Args:
        data: From `describe`.
        out: The console to print to.
    """
    rows = data["blocks"]
    title = FAMILIES[data["family"]].title
    if not rows:
        out.print(f"the model has no {title}")
        return
    out.print(f"{data['fused']} of {len(rows)} {title} are one op at level {data['level']}")
    fused = [row for row in rows if row["fused"]]
    if fused:
        out.print()
        shown = _attention_table(fused) if data["family"] == "attention" else _op_table(fused)
        out.print(shown)
    left: dict[str, list[str]] = {}
    for row in rows:
        if not row["fused"]:
            reason, where = _why(row["reasons"])
            left.setdefault(reason, []).append(f"{row['op']} {row['node']}{_sizes(row)}{where}")
    for reason, nodes in sorted(left.items(), key=lambda item: (-len(item[1]), item[0])):
        out.print()
        say(out, f"{len(nodes)} spelled out: {one_line(reason)}", "bold")
        for node in nodes:
            say(out, f"  {one_line(node)}")


def _why(reasons: list[dict[str, str]]) -> tuple[str, str]:
    """Why a block is left, by pass if several say different things; and where, which differs at every block."""
    told: dict[str, str] = {}
    places: dict[str, None] = {}
    unfit = [refusal for refusal in reasons if refusal["code"] not in (Code.COST.value, Code.DECIDED.value)]
    for refusal in unfit or reasons:  # that another pass would not pay says nothing where the block does not fit
        told.setdefault(refusal["pass"], refusal["clause"])
        if refusal["about"]:
            places[refusal["about"]] = None
    where = f" ({'; '.join(places)})" if places else ""
    if len(set(told.values())) < 2:
        return next(iter(told.values()), NOT_LOOKED_AT), where
    return "; ".join(f"{name}: {reason}" for name, reason in told.items()), where


def _op_table(rows: list[dict[str, Any]]) -> Any:
    return table(("block", "op"), ((row["node"], row["op"]) for row in rows), text=2)


def _attention_table(rows: list[dict[str, Any]]) -> Any:
    headers = ("block", "op", "heads", "queries x keys", "mask", "past")
    cells = (
        (
            row["node"],
            row["op"],
            _heads(row),
            _lengths(row),
            row["mask"] or "?",
            {True: "yes", False: "no", None: "?"}[row["past"]],
        )
        for row in rows
    )
    return table(headers, cells, text=6)


def _heads(row: Mapping[str, Any]) -> str:
    """The heads in words, e.g. ``32 (8 read) of 64``."""
    groups = f" ({row['kv_heads']} read)" if row["kv_heads"] not in (None, row["heads"]) else ""
    return f"{row['heads'] or '?'}{groups} of {row['head_size'] or '?'}"


def _sizes(row: Mapping[str, Any]) -> str:
    """The sizes of a block that is spelled out, as far as they are known."""
    if not row.get("queries") and not row.get("keys"):
        return ""
    heads = f"{row['heads']} heads, " if row["heads"] else ""
    return f": {heads}{_lengths(row)}"


def _lengths(row: Mapping[str, Any]) -> str:
    return " x ".join(row[size] or "?" for size in ("queries", "keys"))
