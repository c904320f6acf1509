"""Every `ortopt …` line of the documentation is one that the command line takes: commands, options, kinds of values."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ortopt import registry
from ortopt.cli.group import commands

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))])
SHELL = {"&&", "||", "|", ";", "&"}


def shown() -> Iterator[tuple[str, str]]:
    """Lines of the pages' console and shell blocks, those that go on in the next line as one: (page, line)."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^ *```(?:console|sh|bash)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                yield page.relative_to(ROOT).as_posix(), line.strip().removeprefix("$ ")


def calls(line: str) -> Iterator[list[str]]:
    """The arguments of each call of ortopt in a line of a shell."""
    try:
        words = shlex.split(line.replace(";", " ; "), comments=True)
    except ValueError:
        return
    call: list[str] | None = None
    for word in [*words, ";"]:
        if word in SHELL:
            if call is not None:
                yield call
            call = None
        elif call is None and word == "ortopt":
            call = []
        elif call is not None:
            call.append(word)


def arguments(words: list[str]) -> list[str]:
    """Without redirections."""
    left: list[str] = []
    skip = False
    for word in words:
        if skip or re.fullmatch(r"\d?[<>]{1,2}(&\d)?", word):
            skip = not skip and "&" not in word
            continue
        left.append(word)
    return left


def parse(words: list[str]) -> None:
    """Parse the arguments as a call would, without running it."""
    with click.Context(commands, info_name="ortopt") as context:
        if not words or words[0].startswith("-"):
            return
        command = commands.get_command(context, words[0])
        assert command is not None, f"there is no command {words[0]}"
    rest = words[1:]
    while isinstance(command, click.Group) and rest and command.get_command(context, rest[0]):
        command = command.get_command(context, rest[0])
        rest = rest[1:]
    assert command is not None
    if {"-h", "--help"} & set(rest):
        return
    with contextlib.suppress(click.exceptions.Exit):  # an option that shows something and ends, e.g. --versions
        command.make_context(words[0], rest, parent=context)


COMMANDS = list(dict.fromkeys((page, shlex.join(arguments(call))) for page, line in shown() for call in calls(line)))


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_the_command_line_takes_it(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        parse(shlex.split(line))
    except click.UsageError as error:
        pytest.fail(f"{page}: ortopt {line}: {error.format_message()}")


def prose(page: Path) -> str:
    """A page without its blocks of code; of the tables of other tools' options, the columns about ortopt."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    if page.parent.name != "coming_from":
        return text
    lines = (line if not line.startswith("|") else line.split(" | ", 1)[-1] for line in text.splitlines())
    return "\n".join(lines)


def in_prose() -> Iterator[tuple[str, str]]:
    """What stands as code in sentences and tables, and names a command or an option: (page, code)."""
    for page in PAGES:
        if page.stem == "benchmarks":  # it names options of the scripts that measure
            continue
        for code in re.findall(r"`((?:ortopt [a-z]|--[a-z])[^`]*)`", prose(page)):
            yield page.relative_to(ROOT).as_posix(), " ".join(code.split())


def options_of(name: str) -> set[str]:
    with click.Context(commands, info_name="ortopt") as context:
        command = commands.get_command(context, name)
        assert command is not None, f"there is no command {name}"
        known = {option for each in command.get_params(context) for option in (*each.opts, *each.secondary_opts)}
        if isinstance(command, click.Group):
            inner = [command.get_command(context, each) for each in command.list_commands(context)]
            known |= {option for each in inner if each for param in each.params for option in param.opts}
        return known


@pytest.fixture(scope="module")
def all_options() -> set[str]:
    with click.Context(commands) as context:
        return set().union(*map(options_of, commands.list_commands(context))) | {"--version"}


@pytest.mark.parametrize(("page", "code"), dict.fromkeys(in_prose()))
def test_options_in_prose_exist(page: str, code: str, all_options: set[str]) -> None:
    words = code.split()
    known = options_of(words[1]) if words[0] == "ortopt" else all_options
    for word in words:
        option = re.match(r"--[a-z][a-z0-9-]*", word)
        if option:
            assert option[0] in known, f"{page}: {code}: there is no {option[0]}"


def named_passes() -> Iterator[tuple[str, str]]:
    """Passes that stand after an option which takes their names: (page, pass)."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for names in re.findall(r"--(?:disable|enable|only) ([a-z0-9_@,]*[a-z0-9_@])", text):
            for name in names.split(","):
                yield page.relative_to(ROOT).as_posix(), name.partition("@")[0]


@pytest.mark.parametrize(("page", "name"), dict.fromkeys(named_passes()))
def test_passes_that_options_name_exist(page: str, name: str) -> None:
    defined = {"mul_to_neg"}  # the pass that the pages write
    passes = {kind.name for kind in registry.installed()}
    assert name in defined | passes, f"{page}: there is no pass {name}"
