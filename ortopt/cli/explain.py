"""``ortopt explain``: what one pass would rewrite in a model, or what becomes of its blocks; what is left, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.option_groups import GroupedCommand
from ortopt.cli.run_options import make_options, run_option, run_options
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.api import Optimization, OptimizeResult
    from ortopt.instrumentation.explanation import Explanation
    from ortopt.options import Options
    from ortopt.transformer import GraphTransformer


@click.command("explain", cls=GroupedCommand, short_help="Show what a pass rewrites and refuses, and why.")
@click.argument("model")
@click.argument("name", metavar="[PASS|BLOCKS]", required=False)
@click.option(
    "-O",
    "--level",
    type=click.IntRange(1, 4),
    help="Run the passes up to this level.  [default: the last level of the pass; else 3]",
)
@click.option("--alone", is_flag=True, help="Run only this pass, on the model as it is, without the passes before it.")
@run_options
@run_option("strict")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(model: str, name: str | None, level: int | None, alone: bool, as_json: bool, **flags: Any) -> None:
    """Show every candidate that PASS refuses, with the reason, and every rewrite that it would do.

    Or show the blocks of the model that one op can stand for (BLOCKS is attention, rotary or normalization): which op
    each becomes, or the first condition that fails. Or show where convolutions run in ONNX Runtime's blocked layout,
    and what makes it reorder images (BLOCKS is layout). Without a name, sum up what every pass rewrites and refuses.
    The passes run as in "ortopt optimize"; nothing is written. MODEL is a file, "-" for stdin, or zoo:NAME.
    """
    from ortopt.analysis.blocks import FAMILIES
    from ortopt.cli.interaction import answer, warn
    from ortopt.errors import UsageError
    from ortopt.instrumentation.explanation import Explanation
    from ortopt.reporting import blocks, costs, layout, reasons

    if name is not None and name != layout.NAME and name not in FAMILIES:
        answer(_of_pass(model, name, level, alone, as_json, flags), _show, as_json=as_json)
        return
    if alone:
        told = "is for one pass: name it" if name is None else f"needs the name of one pass, not {name}"
        raise UsageError(f"--alone {told}")
    if level is not None:
        flags["level"] = level
    options, listener = make_options(**flags), Explanation()
    run, result = _transformed(model, options, listener)
    for failure in result.summary.failures:
        warn(failure)
    passes = [chosen.transformer for chosen in run.selected]
    if name == layout.NAME:
        answer(layout.describe(result.model, options.level), layout.show, as_json=as_json)
    elif name is not None:
        ops = FAMILIES[name].ops
        makers = dict.fromkeys(one.name for one in passes if not ops.keys().isdisjoint(one.fused_ops))
        answer(blocks.describe(result.model, listener, name, makers, options.level), blocks.show, as_json=as_json)
    else:
        rows = reasons.summary(listener, [one.name for one in passes])
        data = {"schema": 1, "model": model, "level": options.level, "passes": rows}
        answer({**data, **costs.as_data(listener.forms, options)}, _show_all, as_json=as_json)


def _of_pass(
    model: str, name: str, level: int | None, alone: bool, as_json: bool, flags: dict[str, Any]
) -> dict[str, Any]:
    """What one pass does and does not, as data that json can write."""
    from ortopt import registry
    from ortopt.cli.interaction import warn
    from ortopt.errors import UsageError
    from ortopt.instrumentation.explanation import Explanation
    from ortopt.reporting.report import shape_arithmetic

    kind = registry.installed().find(name)
    if alone and (flags["only"] or flags["passes"]):
        raise UsageError("--alone runs this pass only: leave out --only and --passes")
    flags["only"] = (kind.name,) if alone else flags["only"]
    flags["enable"] = (*flags["enable"], kind.name)
    options = make_options(level=max(kind.levels) if level is None else level, **flags)
    listener = Explanation([kind.name])
    _, result = _transformed(model, options, listener, kind)
    for failure in result.summary.failures:
        if failure.transformer == kind.name or not as_json:
            warn(failure)
    return describe(listener, kind.name, options, shape_arithmetic(result))


def _transformed(
    model: str, options: Options, listener: Explanation, kind: type[GraphTransformer] | None = None
) -> tuple[Optimization, OptimizeResult]:
    """Optimize a model without verification, as far as time allows.

    Args:
        model: As the user names it.
        options: Options of the run.
        listener: Listens to the run.
        kind: The pass that must be among those that run.
    """
    from ortopt.api import Optimization
    from ortopt.cancellation import CancellationToken
    from ortopt.cli import models
    from ortopt.cli.interaction import cancels, warn
    from ortopt.errors import UsageError

    token = CancellationToken()
    run = Optimization(models.resolve(model).source, options, observers=[listener], cancellation=token)
    if kind is not None and not any(chosen.transformer.name == kind.name for chosen in run.selected):
        levels = ", ".join(str(at.value) for at in kind.levels)
        raise UsageError(f"{kind.name} (level {levels}) does not run with these options")
    with cancels(token):
        result = run.run(verify=False)
    if result.stopped:
        warn("stopped by the time limit; this is the result so far")
    return run, result


def describe(
    listener: Explanation,
    name: str,
    options: Options,
    left: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What a pass did and did not, as data that json can write.

    Args:
        listener: Listened to the run.
        name: The pass's name.
        options: Options of the run.
        left: What is left of shape arithmetic, and who needs it (see `ortopt.reporting.report.shape_arithmetic`).
    """
    from ortopt.reporting import costs
    from ortopt.reporting.reasons import as_data

    needs = {node["node"]: node["why"] for node in left}
    return {
        "schema": 1,
        "pass": name,
        "level": options.level,
        "rewrites": [
            {"number": rewrite.number, "nodes": [{"name": n, "op": op} for n, op in rewrite.nodes], "why": rewrite.why}
            for rewrite in listener.rewrites
        ],
        "refusals": [
            {"node": refusal.node, "op": refusal.op, **as_data(refusal.reason)}
            | ({"needed_by": needs[refusal.node]} if refusal.node in needs else {})
            for refusal in listener.refusals
        ],
        **costs.as_data(listener.forms, options),
    }


def _show(data: dict[str, Any], out: Console) -> None:
    from ortopt.graph.refusal import Code
    from ortopt.reporting import costs, tables
    from ortopt.reporting.reasons import rank

    rewrites, refusals = data["rewrites"], data["refusals"]
    tables.say(out, f"{data['pass']} would make {len(rewrites)} rewrites and refuses {len(refusals)} candidates")
    if rewrites:
        purposes = {rewrite["why"] for rewrite in rewrites}
        tables.say(out, f"each of them: {one_line(purposes.pop()).replace('``', '`')}\n" if len(purposes) == 1 else "")
        columns = 3 if purposes else 2
        rows = (
            (rewrite["number"], ", ".join(f"{node['op']} {node['name']}" for node in rewrite["nodes"]), rewrite["why"])
            for rewrite in rewrites
        )
        headers = ("rewrite", "nodes", "what for")[:columns]
        out.print(tables.table(headers, (row[:columns] for row in rows), text=3, prose=headers[-1]))
    by_reason: dict[tuple[int, str], list[str]] = {}
    for refusal in refusals:
        about = f" ({refusal['about']})" if refusal["about"] else ""
        needed = f": {refusal['needed_by']}" if "needed_by" in refusal else ""
        kind = rank(Code(refusal["code"])), refusal["clause"]
        by_reason.setdefault(kind, []).append(f"{refusal['op']} {refusal['node']}{about}{needed}")
    for (_, reason), nodes in sorted(by_reason.items(), key=lambda item: (item[0][0], -len(item[1]), item[0])):
        out.print()
        tables.say(out, f"{len(nodes)} refused: {one_line(reason)}", "bold")
        for node in nodes:
            tables.say(out, f"  {one_line(node)}")
    costs.show(data, out)


def _show_all(data: dict[str, Any], out: Console) -> None:
    """Print what every pass did and did not."""
    from ortopt.reporting import costs, tables

    busy = [row for row in data["passes"] if row["rewrites"] or row["refusals"]]
    rows = (
        (row["pass"], row["rewrites"], row["refusals"], row["reasons"][0]["reason"] if row["reasons"] else "")
        for row in busy
    )
    headers = ("pass", "rewrites", "refused", "why")
    out.print(tables.table(headers, rows, text=1, prose=headers[-1]))
    idle = len(data["passes"]) - len(busy)
    out.print()
    tables.say(out, f"{idle} more passes ran and found no candidate")
    costs.show(data, out)
    out.print()
    tables.say(out, f"ortopt explain {one_line(data['model'])} PASS lists the candidates of one, each with its reason")
