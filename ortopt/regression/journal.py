"""The journal of a run: what has come of each model so far, so that an interrupted run can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypedDict

from msgspec import Struct

from ortopt import documents
from ortopt.errors import OutputError
from ortopt.regression.facts import checked
from ortopt.regression.model_run import Answer
from ortopt.terminal_text import quoted

_NO_JOURNAL: Final = "no journal of ortopt check"


class _Answer(Struct):
    facts: dict[str, Any]
    error: str | None
    kind: str


class _Order(TypedDict):
    name: str


class _Row(Struct):
    versions: dict[str, str]
    order: dict[str, Any]
    answer: _Answer


class Journal:
    """A file with a line for each model that is done; a line that was cut off is ignored.

    Args:
        path: The file; it need not exist.
        versions: The versions of this run: what was found with others is not taken.

    Raises:
        InvalidModelError: The file is something else.
        OutputError: It cannot be written.
    """

    def __init__(self, path: Path, versions: Mapping[str, str]) -> None:
        self._path = path
        self._versions = dict(versions)
        self._known: dict[str, tuple[dict[str, Any], Answer]] = {}
        self._read()
        try:
            self._file = path.open("a", encoding="utf-8")
            if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
                self._file.write("\n")
        except OSError as error:
            raise OutputError(f"cannot write {quoted(str(path))}: {error.strerror or error}") from error

    def _read(self) -> None:
        if not self._path.exists():
            return
        lines = documents.contents(self._path).splitlines()
        for number, line in enumerate(lines, 1):
            try:
                self._take(line)
            except json.JSONDecodeError as error:
                if number == 1 and len(lines) > 1:
                    raise documents.invalid(self._path, _NO_JOURNAL, error) from error
            except ValueError as error:
                raise documents.invalid(self._path, _NO_JOURNAL, f"line {number}: {error}") from error

    def _take(self, line: bytes) -> None:
        """Keep what a line tells.

        Raises:
            JSONDecodeError: If it was cut off.
            ValueError: If it is something else.
        """
        row = documents.typed(documents.parse_json(line), _Row)
        documents.typed(row.order, _Order)
        checked(row.answer.facts, whole=row.answer.error is None)
        if row.versions == self._versions:
            answer = row.answer
            self._known[row.order["name"]] = (
                row.order,
                {
                    "facts": answer.facts,
                    "error": answer.error,
                    "kind": answer.kind,
                },
            )

    def answer(self, order: Mapping[str, Any], model: str) -> Answer | None:
        """What came of an order in an earlier run; None if it has not run, or was about another model.

        Args:
            order: As `ortopt.regression.case.Case.order` makes it.
            model: The hash of the model.
        """
        known = self._known.get(order["name"])
        if known is None or known[0] != dict(order) or known[1]["facts"].get("model") != model:
            return None
        return known[1]

    def add(self, order: Mapping[str, Any], answer: Answer) -> None:
        """Write what came of an order; it is in the file when this returns."""
        row = {"versions": self._versions, "order": dict(order), "answer": answer}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
