"""``ortopt optimize``: transform, verify, write, report."""

from __future__ import annotations

from typing import Any

import click

from ortopt.cli.option_groups import GroupedCommand, count_option, external_data_option, inputs_option
from ortopt.cli.run_options import half_precision_options, make_options, run_option, run_options


@click.command("optimize", cls=GroupedCommand, short_help="Make a model smaller and faster, and verify it.")
@click.argument("models", metavar="IN... [OUT]", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="The file to write, or the folder if there are several models.  [default: IN-stem.opt.onnx]",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace OUT even if ortopt did not write that file; only needed without -o."
)
@run_option("level")
@run_options
@run_option("strict", help_="Refuse a result that cannot be trusted: a pass failed, or nothing could be verified.")
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Run the result and the original on the same inputs, and compare their outputs.",
)
@click.option("--thorough", is_flag=True, help="Verify on many more input sets.")
@run_option("rtol")
@run_option("atol")
@run_option("verify_with")
@run_option("repair")
@run_option("keep_pass")
@inputs_option("Input arrays by name, to verify with.  [default: several sets of random inputs]")
@external_data_option(
    "Where weights go: into the model's file, into a file beside it, or nowhere: they stay where they are."
)
@click.option(
    "--tune", is_flag=True, help="Measure on this machine which passes and fused ops pay off, and take those."
)
@click.option("--tune-seconds", type=click.FloatRange(min=0), help="Time to measure in, about.  [default: 60]")
@count_option(
    "--tune-threads", None, "Threads that the result will run with.  [default: 1, without forms that lose with several]"
)
@click.option("--choices", "choices_file", metavar="FILE", help="Choices that --tune has made: a report of --json.")
@run_option("rename")
@run_option("value_info")
@run_option("provenance")
@half_precision_options
@click.option("--profile", is_flag=True, help="Show where the time goes, by op, before and after, and why.")
@click.option("--json", "json_file", metavar="FILE", help="Write the report as JSON.")
@click.option(
    "--html", "html_file", metavar="FILE", help="Write the report as a page for a browser; of several models, a folder."
)
@click.option("--dump-dir", metavar="DIR", help="Write the model before and after each pass that changed it.")
@click.option("--trace", "trace_file", metavar="FILE", help="Write a timeline of the run, for ui.perfetto.dev.")
@click.option(
    "-v", "--verbose", count=True, help="Show all of the report, with every op and pass; -vv: idle passes, too."
)
@click.option("-q", "--quiet", is_flag=True, help="Show warnings and errors only, no report and no progress.")
def command(models: tuple[str, ...], **flags: Any) -> None:
    """Optimize a model, verify the result against the original, and write it.

    IN is a file, "-" for stdin, or zoo:NAME. OUT may be "-" for stdout; the report then goes to stderr.

    With -o, IN may be several models and folders; OUT is a folder then. Without -o, two files are IN and OUT.
    """
    from ortopt.cli.models import are_several, one

    overwrite = flags.pop("overwrite")
    options = make_options(**flags)
    if flags["choices_file"] is not None:
        from ortopt.measurement.choices import read_choices

        options = read_choices(flags["choices_file"]).applied_to(options)
    if are_several(models, flags["output"]):
        from ortopt.cli.several import optimize

        raise click.exceptions.Exit(optimize(models, options, **flags))
    model, flags["output"] = one(models, flags["output"], overwrite=overwrite)
    if flags["verify"]:
        from ortopt.verification import start

        click.get_current_context().with_resource(start.early())
    from ortopt.cli.optimization import Run

    Run(model, options, **flags).all()
