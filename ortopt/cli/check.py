"""``ortopt check``: a zoo against its baseline."""

from __future__ import annotations

from typing import Any, Final

import click

from ortopt.cli.option_groups import THREADS, Finite, GroupedCommand, count_option, inputs_option
from ortopt.cli.run_options import run_option

MERGE: Final = "merge"
DIFF: Final = "diff"
_NOT_HERE: Final = frozenset({"strict", "repair", "keep_pass", "provenance", "timeout", "enforce_timeout", "limit"})


def _options_of_runs(function: Any) -> Any:
    """The options of a run that all models of a zoo can have."""
    from ortopt.options import declarations

    names = [name for name, declared in declarations().items() if declared.flag and name not in _NOT_HERE]
    for name in reversed(names):
        function = run_option(name)(function)
    return function


@click.command("check", cls=GroupedCommand, short_help="Optimize a zoo of models and compare with a baseline.")
@click.argument("zoo", metavar="ZOO...", nargs=-1, required=True)
@click.option(
    "--baseline", metavar="FILE", help="The baseline to compare with.  [default: the one that the manifest names]"
)
@click.option("--update", is_flag=True, help="Write what this run gives as the new baseline.")
@click.option(
    "--prune", is_flag=True, help="With --update: remove models from the baseline that this run does not have."
)
@_options_of_runs
@inputs_option("Input arrays by name, to verify and to measure a single model with.  [default: random inputs]")
@click.option("--thorough", is_flag=True, help="Verify on many more input sets.")
@click.option("--layers", is_flag=True, help="Name the first intermediate value that differs where a result differs.")
@click.option("--strict", is_flag=True, help="Also fail if a pass fails, or if a result cannot be verified.")
@click.option("--latency", is_flag=True, help="Measure how fast each result runs compared with its original.")
@count_option("--latency-rounds", 9, "With --latency: processes that measure each version.", least=5)
@click.option(
    "--threads", type=THREADS, default=1, show_default=True, help="With --latency: threads that one op may use."
)
@count_option("--jobs", 1, "Number of models that run at the same time.", most=256)
@click.option(
    "--timeout",
    type=Finite(min=0, min_open=True),
    metavar="SECONDS",
    help="Seconds that one model may take.  [default: no limit]",
)
@click.option(
    "--max-memory", metavar="SIZE", help="Memory that one model may use.  [default: its share of 75 % of the machine's]"
)
@click.option("--shard", metavar="I/N", help="Run only part I of N parts of the zoo, e.g. 1/4.")
@click.option("--resume", metavar="FILE", help="Record finished models in FILE, and skip those that are already there.")
@click.option("--changed-since", metavar="BASELINE", help="Skip models that have not changed since this baseline.")
@click.option("--dask", metavar="ADDRESS", help="Run on the workers of a Dask scheduler (extra: cluster).")
@click.option("--junit", metavar="FILE", help="Write the results as JUnit XML, for CI servers.")
@click.option("--markdown", metavar="FILE", help="Write the results as Markdown, e.g. for a job summary.")
@click.option("--html", "html_file", metavar="FILE", help="Write the results as a page for a browser.")
@click.option("--json", "json_file", metavar="FILE", help="Write the results as JSON.")
@click.option(
    "--annotations/--no-annotations",
    default=None,
    help="Print annotations for GitHub Actions.  [default: where they run it]",
)
@click.option("-q", "--quiet", is_flag=True, help="Show failures only.")
def command(zoo: tuple[str, ...], **flags: Any) -> None:
    """Optimize and verify every model of a zoo, and compare with a baseline.

    ZOO is models, folders, patterns, a manifest (ortopt-zoo.toml) or zoo: for the zoo's (extra: zoo).

    \b
    ortopt check models/ --baseline baseline.json --update    write a baseline
    ortopt check models/ --baseline baseline.json             compare with it
    ortopt check merge 1.json 2.json                          put shards together
    ortopt check diff A.json B.json [MANIFEST]                compare baselines

    Exit codes: 0 as the baseline or better, 3 something is worse or a result differs, 2 a model cannot be read or run
    (of several the first of 2, 3), 1 usage; with --strict also 3 not verified, 4 a pass failed, 1 no such provider.
    """  # noqa: D301 - click reads the backspace, and leaves the lines below it as they are
    from ortopt.cli.check_run import check, diff, merge

    context = click.get_current_context()
    given = {
        str(option.name): option.opts[0]
        for option in context.command.params
        if context.get_parameter_source(str(option.name)) is not click.core.ParameterSource.DEFAULT
    }
    del given["zoo"]
    code = {MERGE: merge, DIFF: diff}.get(zoo[0], check)(zoo, flags, given)
    raise click.exceptions.Exit(code)
