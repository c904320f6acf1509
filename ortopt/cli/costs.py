"""``ortopt costs``: what fused ops cost: measure it here, show a table, compare two."""

from __future__ import annotations

import contextlib
import sys

import click

from ortopt.cli.option_groups import count_option


@click.group("costs")
def command() -> None:
    """What fused ops cost beside the nodes that they stand for: the tables that decide which of them are taken."""


@command.command("measure")
@click.option("-o", "--output", metavar="FILE", default="costs.json", show_default=True, help="The table to write.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Time to measure in.  [default: 180]")
@count_option("--threads", 1, "Threads within an op; of one thread, the CPU's time is measured.")
@click.option("--provider", metavar="NAME", default="cpu", show_default=True, help="The execution provider to measure.")
@click.option("--name", metavar="TEXT", help="The table's name in reports.  [default: measured-onnxruntime-VERSION]")
@click.option("-q", "--quiet", is_flag=True, help="Show warnings and errors only.")
def measure(output: str, seconds: float | None, threads: int, provider: str, name: str | None, quiet: bool) -> None:
    """Measure on this machine what every form costs, and write a table for --costs.

    Each form and the nodes that it stands for are called in turns, in processes of their own, again and again until
    time is over. Ctrl-C ends it and keeps what was measured.
    """
    from ortopt.analysis.providers import normalize, runtime
    from ortopt.cancellation import CancellationToken
    from ortopt.cli import files
    from ortopt.cli.interaction import cancels
    from ortopt.errors import OptimizationCancelled
    from ortopt.measurement import cost_tables as tables
    from ortopt.measurement import costs
    from ortopt.measurement.forms import catalog
    from ortopt.reporting import cost_tables, report

    files.check_outputs({"-o": output}, {})
    full_name = normalize(provider)
    _check_usable(full_name)
    out = report.console(sys.stderr if output == files.STREAM else sys.stdout)
    told = None if quiet else cost_tables.Told(out, len(catalog.ENTRIES), full_name)
    token = CancellationToken()
    with contextlib.suppress(OptimizationCancelled), cancels(token):
        measurement = costs.measure(
            catalog.ENTRIES,
            seconds=costs.SECONDS if seconds is None else seconds,
            threads=threads,
            provider=full_name,
            report=told,
            token=token,
        )
    version = str(runtime()["version"])
    table = tables.as_file(
        measurement,
        name=name or f"measured-onnxruntime-{version}",
        onnxruntime=version,
        processor=tables.processor() if full_name == normalize("cpu") else full_name,
    )
    files.write_bytes(output, table)
    if not quiet:
        cost_tables.show_measurement(measurement, output, out)


def _check_usable(provider: str) -> None:
    """Refuse a provider that does not work here."""
    from ortopt.analysis.providers import usable
    from ortopt.errors import UsageError

    works, reason = usable(provider)
    if not works:
        raise UsageError(f"{provider} cannot be measured here: {reason}")


@command.command("show")
@click.option("--costs", metavar="FILE", help="The table.  [default: the one that comes with ortopt]")
@click.option("--min-onnxruntime", metavar="VERSION", help="As runs ask it that allow this release and newer ones.")
@click.option("--for-threads", type=click.IntRange(min=1), help="As runs ask it whose result has so many threads.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(costs: str | None, min_onnxruntime: str | None, for_threads: int | None, as_json: bool) -> None:
    """Show a table: its forms, what they cost at which sizes, and who says so."""
    from ortopt.analysis import cost_tables as files_of_costs
    from ortopt.analysis import releases
    from ortopt.cli.interaction import answer
    from ortopt.reporting import cost_tables

    oldest = None if min_onnxruntime is None else releases.parse_release(min_onnxruntime)
    data = cost_tables.described(files_of_costs.table_of(costs, oldest, threads=for_threads))
    answer(data, cost_tables.show, as_json=as_json)


@command.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(first: str, second: str, as_json: bool) -> None:
    """Show where the verdicts of two tables differ, e.g. of two processors or two versions of ONNX Runtime.

    A and B are files of ortopt costs measure, or "shipped" for the table that comes with ortopt.
    """
    from ortopt.analysis.cost_tables import read_file, shipped_for
    from ortopt.cli.interaction import answer
    from ortopt.reporting import cost_tables

    files = [None if name == "shipped" else read_file(name) for name in (first, second)]
    threads = min((file.measured.threads for file in files if file is not None), default=None)
    tables = [shipped_for(None, threads=threads) if file is None else file for file in files]
    data = cost_tables.compared(*tables)
    answer(data, cost_tables.show_comparison, as_json=as_json)
