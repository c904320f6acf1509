"""The help of commands with many options: few first, all below headings on request."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from ortopt.cli.group import COMMANDS, commands
from ortopt.cli.option_groups import FIRST, HEADINGS, GroupedCommand


def command_of(name: str) -> click.Command:
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    return command


GROUPED = [name for name in COMMANDS if isinstance(command_of(name), GroupedCommand)]


def options_of(name: str) -> list[click.Option]:
    params = command_of(name).params
    return [param for param in params if isinstance(param, click.Option)]


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(commands, arguments, prog_name="ortopt")
    assert done.exit_code == 0
    return done.output


def test_every_heading_has_each_of_its_options_once() -> None:
    names = [name for names in HEADINGS.values() for name in names]
    assert len(names) == len(set(names))
    assert set(names) >= FIRST


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_with_many_options_are_grouped(name: str) -> None:
    command = command_of(name)
    assert isinstance(command, GroupedCommand) or len(command.params) <= 20


@pytest.mark.parametrize("name", GROUPED)
def test_all_options_are_shown_on_request_and_few_first(name: str) -> None:
    everything, few = shown(name, "--help-all"), shown(name, "--help")
    for option in options_of(name):
        listed = re.compile(rf"^  (-\w, )?{option.opts[-1]}\b", re.MULTILINE)
        assert listed.search(everything), option.name
        assert (listed.search(few) is not None) is (option.name in FIRST), option.name
    for text in (everything, few):
        assert "--help-all" in text
        assert "-h, --help " in text


def every_command(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """The names of a command and of all below it, each as they are typed."""
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from every_command(below, *path, name)


@pytest.mark.parametrize("path", [*every_command(commands)], ids=lambda path: " ".join(path) or "ortopt")
def test_help_is_rendered(path: tuple[str, ...]) -> None:
    for flag in ("--help", *(["--help-all"] if path and path[0] in GROUPED else [])):
        text = shown(*path, flag)
        assert "\\" not in text, "markup of docstrings is not for people"
        assert all(letter.isprintable() or letter == "\n" for letter in text)
        assert max(map(len, text.splitlines())) <= 80


def test_the_examples_of_check_stand_below_each_other() -> None:
    lines = [line.strip() for line in shown("check", "--help").splitlines()]
    at = lines.index("ortopt check models/ --baseline baseline.json --update    write a baseline")
    assert lines[at + 1 : at + 3] == [
        "ortopt check models/ --baseline baseline.json             compare with it",
        "ortopt check merge 1.json 2.json                          put shards together",
    ]


def test_optimize_shows_a_dozen_first() -> None:
    assert 10 <= sum(option.name in FIRST for option in options_of("optimize")) <= 13
