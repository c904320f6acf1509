"""Cases that are written down as text: a title, a body, and what else is to be said of it, in lines of their own."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet


class Case(NamedTuple):
    """A case of a file.

    Attributes:
        title: What stands behind ``---``.
        body: The lines below the title, but for those of `told`.
        told: What lines that begin with ``KEY:`` say, by key; a value goes on in lines that begin with spaces.
    """

    title: str
    body: str
    told: dict[str, str]


def read(path: Path, keys: Collection[str] = ()) -> list[Case]:
    """The cases of a file, in its order; empty lines, and lines that begin with ``#``, are no part of any.

    Args:
        path: The file.
        keys: What a line of its own may begin with.
    """
    sections = re.split(r"^--- ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [_case(section, keys) for section in sections]


def _case(section: str, keys: Collection[str]) -> Case:
    title, *lines = (line for line in section.splitlines() if line and not line.startswith("#"))
    body: list[str] = []
    told: dict[str, str] = {}
    current = None
    for line in lines:
        key, colon, value = line.partition(":")
        if colon and key in keys:
            current, told[key] = key, value.strip()
        elif current is None:
            body.append(line)
        else:
            assert line.startswith(" "), f"{title}: {line!r} is not understood"
            told[current] += f" {line.strip()}"
    return Case(title, "\n".join(body), told)


def cells(line: str) -> list[str]:
    """The cells of a row: what stands between ``|``; one of ``-`` is empty."""
    return ["" if cell == "-" else cell for cell in re.split(r" +\| +", line)]


def table(path: Path, title: str) -> list[list[str]]:
    """The rows of one case of a file, in which each line is a row.

    Args:
        path: The file.
        title: The case's title.
    """
    (body,) = (case.body for case in read(path) if case.title == title)
    return [cells(line) for line in body.splitlines()]


def rows(path: Path, keys: Collection[str] = ()) -> list[ParameterSet]:
    """The rows of all cases of a file, to parametrize a test with: the case, and the cells.

    Args:
        path: The file.
        keys: As for `read`.
    """
    return [
        pytest.param(case, cells(line), id=f"{case.title}: {line}")
        for case in read(path, keys)
        for line in case.body.splitlines()
    ]
