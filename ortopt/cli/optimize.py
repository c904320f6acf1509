"""``ortopt optimize``: transform, verify, write, report."""

from __future__ import annotations

from typing import Any

import click

from ortopt.cli.run_options import make_options, run_option, run_options


@click.command("optimize", short_help="Make a model smaller and faster, and verify it.")
@click.argument("models", metavar="IN... [OUT]", nargs=-1, required=True)
@click.option("-o", "--output", metavar="OUT", help="A file, or a folder for several.  [default: IN-stem.opt.onnx]")
@click.option("--overwrite", is_flag=True, help="Let OUT without -o replace a file that ortopt has not written.")
@run_option("level")
@run_options
@run_option("strict", help_="Refuse a result that cannot be trusted: a pass failed, or nothing could be verified.")
@click.option("--verify/--no-verify", default=True, show_default=True, help="Compare numbers with the original.")
@click.option("--thorough", is_flag=True, help="Verify on many more input sets.")
@run_option("repair")
@run_option("keep_pass")
@click.option("--inputs", metavar="FILE.npz", help="Arrays to verify with, by input name.")
@click.option(
    "--external-data",
    type=click.Choice(["auto", "inline", "copy", "reuse"]),
    default="auto",
    show_default=True,
    help="Weights in the model's file, copied beside it, or left in the original's files.",
)
@run_option("provenance")
@click.option("--profile", is_flag=True, help="Show where the time goes, by op, before and after, and why.")
@click.option("--json", "json_file", metavar="FILE", help="The report as data.")
@click.option("--dump-dir", metavar="DIR", help="The model before and after each pass that changed it.")
@click.option("--trace", "trace_file", metavar="FILE", help="A trace for ui.perfetto.dev.")
@click.option("-v", "--verbose", is_flag=True, help="List passes that changed nothing too.")
@click.option("-q", "--quiet", is_flag=True, help="No report, no progress; warnings and errors only.")
def command(models: tuple[str, ...], **flags: Any) -> None:
    """Optimize a model, verify the result against the original, and write it.

    IN is a file, "-" for stdin, or zoo:NAME. OUT may be "-" for stdout; the report then goes to stderr.

    With -o, IN may be several models and folders; OUT is a folder then. Without -o, two files are IN and OUT.
    """
    from ortopt.cli import arguments

    overwrite = flags.pop("overwrite")
    if arguments.are_several(models, flags["output"]):
        from ortopt.cli.several import optimize

        raise click.exceptions.Exit(optimize(models, make_options(**flags), **flags))
    model, flags["output"] = arguments.one(models, flags["output"], overwrite=overwrite)
    if flags["verify"]:
        from ortopt.verification import start

        click.get_current_context().with_resource(start.early())
    from ortopt.cli.optimization import Run

    Run(model, make_options(**flags), **flags).all()
