"""``ortopt diff``: how two models differ, on the terminal and as a page."""

from __future__ import annotations

import click

from ortopt.cli.option_groups import memory_option


@click.command("diff", short_help="Show how two models differ: nodes, interface, weights.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--html", "html_file", metavar="FILE", help="Both graphs as a page for a browser.")
@click.option("--json", "as_json", is_flag=True, help="As data.")
@memory_option
def command(first: str, second: str, html_file: str | None, as_json: bool) -> None:
    """Show how model B differs from model A: nodes by op, inputs and outputs, opsets, weights.

    Nothing is run: "ortopt verify" compares the numbers. A and B are files, zoo:NAME, or, one of them, "-" for stdin.
    The page says which pass made a node, and from which nodes, where B was written with --provenance.
    """
    from ortopt.cli import files, models
    from ortopt.cli.interaction import answer
    from ortopt.errors import UsageError
    from ortopt.reporting import model_diff
    from ortopt.serialization.load import load

    if first == second == files.STREAM:
        raise UsageError("only one of the models can come from stdin")
    if html_file == files.STREAM:
        raise UsageError("--html writes a page for a browser into a file: give its name")
    arguments = [models.resolve(text) for text in (first, second)]
    outputs = {"--html": html_file}
    files.check_outputs(outputs, {"a model": [one.path for one in arguments if one.path is not None]})
    a, b = (load(argument.source) for argument in arguments)
    files.check_not_read(outputs, {"external data of a model": [*models.external_data(a), *models.external_data(b)]})
    data = model_diff.compare(a, b, arguments[0].label, arguments[1].label)
    if html_file:
        from ortopt.reporting.page.pages import diff_page

        files.write_text(html_file, diff_page(a, b, data))
    answer(data, model_diff.show, as_json=as_json)
