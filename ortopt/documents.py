"""JSON and TOML that people hand over: of bounded nesting, each key once, and with values of the types that are asked.

All that ortopt reads of such files comes through here, so that a broken or hostile one is told of in one line.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from ortopt.errors import InvalidModelError
from ortopt.terminal_text import one_line, quoted

MAX_DEPTH: Final = 64
"""How deeply a document may be nested; what ortopt writes has ten levels."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""An integer that counts something."""

Amount = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
"""A number that is measured: neither negative, infinite, nor NaN."""

_DEEP_KEY: Final = rf"""(?<![\w.-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}"""
"""A dotted key of more parts than a document has levels: `tomllib` takes quadratic time for it."""

_T = TypeVar("_T")


def contents(path: str | Path) -> bytes:
    """The bytes of a file.

    Raises:
        InvalidModelError: If it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidModelError(f"{quoted(str(path))}: {error.strerror or error}") from error


def parse_json(text: str | bytes) -> Any:
    """The document that a text holds.

    Args:
        text: The text; bytes are UTF-8.

    Raises:
        ValueError: If it is no JSON, has a key twice in one object, or is nested too deeply.
    """
    try:
        whole = text if isinstance(text, str) else text.decode("utf-8-sig")
        return _checked(json.loads(whole, object_pairs_hook=_object, parse_constant=_no_number))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """The document that a text holds.

    Args:
        text: The text; bytes are UTF-8.

    Raises:
        ValueError: If it is no TOML, or is nested too deeply.
    """
    import tomllib  # one command reads it

    whole = text if isinstance(text, str) else text.decode("utf-8-sig")
    if re.search(_DEEP_KEY, whole):
        raise ValueError(_TOO_DEEP)
    try:
        document: dict[str, Any] = _checked(tomllib.loads(whole))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return document


def typed(data: Any, kind: type[_T]) -> _T:
    """A part of a document as a value of a type; what the type does not name is left out.

    Args:
        data: The part.
        kind: A class of records, or any other type that msgspec knows.

    Raises:
        ValueError: If a value is of another type; the message says which, and where.
    """
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise ValueError(str(error).replace("`$.", "`").replace(" - at `$`", "")) from None


_TOO_DEEP: Final = f"it is nested more than {MAX_DEPTH} levels deep"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"the key {quoted(counts.most_common(1)[0][0])} stands twice in one object")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _checked(document: Any) -> Any:
    """A document whose nesting is bounded, and whose texts can be written.

    Raises:
        ValueError: If one is not.
    """
    level = [document]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                _check_texts(value)
                below += value.values()
            elif isinstance(value, list):
                below += value
        _check_texts(value for value in below if isinstance(value, str))
        level = [value for value in below if isinstance(value, dict | list)]
        if not level:
            return document
    raise ValueError(_TOO_DEEP)


def _check_texts(texts: Iterable[str]) -> None:
    """Refuse halves of letters, which JSON can spell and no file can hold."""
    for text in texts:
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"the text {quoted(text)} is no Unicode")


def read_json(path: str | Path, kind: type[_T], what: str, *, schema: int) -> _T:
    """The document in a file that ortopt has written.

    Args:
        path: The file.
        kind: A class of records.
        what: What a file of something else is, e.g. ``no baseline of ortopt check``.
        schema: The schema that this version reads.

    Raises:
        InvalidModelError: If the file cannot be read, or is something else.
    """
    content = contents(path)
    try:
        data = parse_json(content)
        found = data.get("schema") if isinstance(data, dict) else None
        if type(found) is int and found != schema:
            reason = f"it is of schema {found}; this ortopt reads {schema}"
            raise invalid(path, what, reason)
        return typed(data, kind)
    except ValueError as error:
        raise invalid(path, what, error) from error


def invalid(path: str | Path, what: str, error: object) -> InvalidModelError:
    """The error of a file that is something else, in one line.

    Args:
        path: The file.
        what: What it is not, e.g. ``no baseline of ortopt check``.
        error: Why.
    """
    return InvalidModelError(f"{quoted(str(path))}: {what}: {one_line(error)}")


__all__ = ["MAX_DEPTH", "Amount", "Count", "contents", "invalid", "parse_json", "parse_toml", "read_json", "typed"]
