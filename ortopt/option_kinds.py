"""The kinds of values that options take: how they are checked, read from the command line, and written for it."""

from __future__ import annotations

import enum
import math
import operator
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, ClassVar

from ortopt.errors import UsageError
from ortopt.terminal_text import one_line

_UNITS = {"": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
UNLIMITED = "unlimited"
KEPT = "_"
"""How a size is written that stays as it is."""


def parse_size(text: str) -> int:
    """A number of bytes, e.g. ``1MB`` or ``65536``.

    Raises:
        UsageError: If the text is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text.strip())
    unit = None if match is None else _UNITS.get(match[2].lower())
    nbytes = math.inf if match is None or unit is None else float(match[1]) * unit
    if math.isinf(nbytes):
        raise UsageError(f"{text!r} is no size; write e.g. 65536, 1MB or 2GiB")
    return int(nbytes)


def whole_number(option: str, value: object, *, least: int = 0) -> int:
    """An option's value as a whole number; a bool is none.

    Args:
        option: The option's name, for messages.
        value: The value.
        least: The smallest valid value.

    Raises:
        UsageError: If it is no whole number, or too small.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise UsageError(f"{option} must be a whole number, not {value!r}")
    if number < least:
        raise UsageError(f"{option} must be at least {least}, not {number}")
    return number


class Kind:
    """The values that an option takes: from Python, and as text on the command line.

    Attributes:
        syntax: How values are written on the command line, where that is not obvious.
        is_list: Whether the flag may be repeated.
    """

    syntax: ClassVar[str] = ""
    is_list: ClassVar[bool] = False

    def checked(self, name: str, value: Any) -> Any:
        """An option's value as `Options` holds it.

        Args:
            name: The option's name, for messages.
            value: The value as `optimize` takes it.

        Raises:
            UsageError: If it makes no sense.
        """
        return value

    def parsed(self, flag: str, text: Any) -> Any:
        """A value as `checked` takes it, from the command line.

        Args:
            flag: The option's flag, for messages.
            text: A text; the texts of a list; what click has converted already.

        Raises:
            UsageError: If it makes no sense.
        """
        return text

    def arguments(self, flag: str, value: Any) -> list[str]:
        """A value that is not the default, as arguments of the command line.

        Args:
            flag: The option's flag.
            value: The value as `Options` holds it.
        """
        return [flag, str(value)]


class Text(Kind):
    """A text, or None."""

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a text."""
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} takes a text, not {value!r}")
        return value


class Settings(Kind):
    """Options of single transformers: name to option to value."""

    def checked(self, name: str, value: Any) -> Any:
        """Check that names of passes have options by name, and copy them."""
        named = value or {}
        if not isinstance(named, Mapping) or not all(
            isinstance(options, Mapping) and all(isinstance(key, str) for key in (which, *options))
            for which, options in named.items()
        ):
            raise UsageError(f"{name} maps names of passes to their options, not {value!r}")
        return dict(named)


class Switch(Kind):
    """True or False. A switch that is on by default is turned off by ``--no-NAME``."""

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is one of them."""
        if not isinstance(value, bool):
            raise UsageError(f"{name} takes true or false, not {value!r}")
        return value

    def arguments(self, flag: str, value: Any) -> list[str]:
        """The flag that turns it the other way."""
        return [flag if value else f"--no-{flag.removeprefix('--')}"]


class Count(Kind):
    """A whole number within bounds, or None where that is the default.

    Args:
        least: The smallest valid number.
        most: The largest, or None.
    """

    def __init__(self, least: int, most: int | None = None) -> None:
        self.least = least
        self.most = most

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a whole number within the bounds."""
        number = whole_number(name, value, least=self.least)
        if self.most is not None and number > self.most:
            raise UsageError(f"the {name} must be {self.least} to {self.most}, not {number}")
        return number

    def arguments(self, flag: str, value: Any) -> list[str]:
        """A short flag and its number are one argument."""
        return [flag, str(value)] if flag.startswith("--") else [f"{flag}{value}"]


class Level(Count):
    """A level of optimization, 0 to 4; also a text: ``3``, ``O3``, ``-O3``."""

    def __init__(self) -> None:
        super().__init__(0, 4)

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a level."""
        number = re.fullmatch(r"(?:-?O)?(\d)", value, re.ASCII) if isinstance(value, str) else None
        return super().checked(name, value if number is None else int(number[1]))


LATEST = "latest"


class Opset(Kind):
    """A version of ai.onnx, or the newest that may be."""

    syntax = f"a number, {LATEST}"

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a version, also as text."""
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        return value if value is None or value == LATEST else whole_number(name, value, least=1)


class Size(Kind):
    """A number of bytes."""

    syntax = "e.g. 0, 1MB, unlimited"

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a number of bytes, or a text with a unit."""
        if isinstance(value, str):
            return sys.maxsize if value.strip().lower() == UNLIMITED else parse_size(value)
        return whole_number(name, value)

    def arguments(self, flag: str, value: Any) -> list[str]:
        """The number of bytes, or that there is no limit."""
        return [flag, UNLIMITED if value == sys.maxsize else str(value)]


class Number(Kind):
    """A finite number that is not negative, or None where that is the default.

    Attributes:
        says: What it must be, for messages.
        may_be_zero: Whether it may be 0.
    """

    says: ClassVar[str]
    may_be_zero: ClassVar[bool] = False

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a number, and large enough."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value <= sys.float_info.max and (value or self.may_be_zero)):
            raise UsageError(f"the {name} must be {self.says}, not {value!r}")
        return value


class Seconds(Number):
    """A positive number of seconds."""

    says = "a positive number of seconds"


class Share(Number):
    """A positive share of something, or None where that is the default."""

    says = "a positive number"


class Tolerance(Number):
    """A finite number that is not negative, or None."""

    says = "a number from 0 on"
    may_be_zero = True


class Choice(Kind):
    """One of the values of an enumeration.

    Args:
        kind: The enumeration.

    Attributes:
        values: Its values.
    """

    def __init__(self, kind: type[enum.Enum]) -> None:
        self.values = tuple(member.value for member in kind)
        self._kind = kind

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is one of the values, or a member of the enumeration."""
        if isinstance(value, self._kind):
            return value
        if value not in self.values:
            raise UsageError(f"the {name} must be {' or '.join(self.values)}, not {value!r}")
        return self._kind(value)

    def arguments(self, flag: str, value: Any) -> list[str]:
        """The value."""
        return [flag, str(value.value)]


class Names(Kind):
    """A list of names; as text, as on the command line, separated by commas."""

    is_list = True

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a list of names, or a text that is read as one."""
        if isinstance(value, str):
            return commas((value,))
        names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, bytes) else (value,)
        if not all(isinstance(each, str) for each in names):
            raise UsageError(f"{name} takes names, not {value!r}")
        return names

    def parsed(self, flag: str, text: Any) -> Any:
        """The names that are separated by commas."""
        return commas(text)

    def arguments(self, flag: str, value: Any) -> list[str]:
        """The names, separated by commas."""
        return [flag, ",".join(value)]


class Paths(Kind):
    """A list of paths, of what may also have a name; on the command line the flag is repeated."""

    is_list = True

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a list."""
        if isinstance(value, str | os.PathLike):
            raise UsageError(f"{name} takes a list of files, not {os.fspath(value)!r}")
        return tuple(map(os.fspath, value))

    def arguments(self, flag: str, value: Any) -> list[str]:
        """A flag for each path."""
        return [argument for path in value for argument in (flag, path)]


class Files(Paths):
    """A list of files; on the command line the flag is repeated."""

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a list of files that are there."""
        paths = super().checked(name, value)
        for path in paths:
            if not os.path.isfile(path):  # noqa: PTH113 -- pathlib is not imported at start-up
                raise UsageError(f"{name}: there is no file {path!r}")
        return paths


class File(Kind):
    """A file that is there, or None."""

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is there."""
        if value is None:
            return None
        path = os.fspath(value)
        if not isinstance(path, str) or not os.path.isfile(path):  # noqa: PTH113 -- as above
            raise UsageError(f"{name}: there is no file {path!r}")
        return path


class Table(Kind):
    """Something by names; on the command line texts of the form NAME=VALUE.

    Attributes:
        says: What it maps to what, for messages, with an example.
    """

    is_list = True
    says: ClassVar[str]

    def checked(self, name: str, value: Any) -> Any:
        """Check that it is a mapping, or a text that is read as one, and what it maps."""
        if isinstance(value, str):
            value = self.parsed(name, (value,))
        if value is not None and not isinstance(value, Mapping):
            raise UsageError(f"{name} maps {self.says}, not {one_line(repr(value))}")
        for key in value or {}:
            if not isinstance(key, str):
                raise UsageError(f"{name} maps {self.says}; {key!r} is no name")
        return {key: self._one(name, key, one) for key, one in (value or {}).items()}

    def _one(self, name: str, key: str, value: Any) -> Any:
        """What a name is mapped to, checked."""
        raise NotImplementedError

    def arguments(self, flag: str, value: Any) -> list[str]:
        """A flag for each name."""
        return [argument for key, one in value.items() for argument in (flag, f"{key}={self._text(one)}")]

    def _text(self, value: Any) -> str:
        """What a name is mapped to, as a flag takes it."""
        return str(value)


class Sizes(Table):
    """Sizes by name."""

    says = "names of dimensions to sizes, e.g. {'batch': 1}"

    def parsed(self, flag: str, text: Any) -> Any:
        """The sizes from texts of the form NAME=VALUE,NAME=VALUE."""
        return named_sizes(flag, text)

    def _one(self, name: str, key: str, value: Any) -> Any:
        return whole_number(f"the size of dimension {key}", value)


class Extents(Table):
    """By name a size, or the least and the greatest one."""

    says = "names of dimensions to sizes, e.g. {'seq': (1, 512)}"

    def parsed(self, flag: str, text: Any) -> Any:
        """The sizes from texts of the form NAME=SIZE or NAME=LOW..HIGH."""
        return named_extents(flag, text)

    def _one(self, name: str, key: str, value: Any) -> Any:
        return _extent(key, value)

    def _text(self, value: Any) -> str:
        low, high = value
        return str(low) if low == high else f"{low}..{high}"


class Shapes(Table):
    """Shapes by the names of inputs: tuples of sizes, None for a dimension that stays as it is."""

    says = "names of inputs to shapes, e.g. {'x': [1, 3, 224, 224]}"

    def parsed(self, flag: str, text: Any) -> Any:
        """The shapes from texts of the form NAME=SIZE,SIZE."""
        return named_shapes(flag, text)

    def _one(self, name: str, key: str, value: Any) -> Any:
        if isinstance(value, str):
            return _shape(f"{name} of {key}", value)
        try:
            sizes = None if isinstance(value, bytes | Mapping | Set) else tuple(value)
        except TypeError:
            sizes = None
        if sizes is None:
            raise UsageError(f"the shape of input {key} is a list of sizes, not {value!r}")
        return tuple(None if size is None else whole_number(f"a size of input {key}", size) for size in sizes)

    def _text(self, value: Any) -> str:
        return ",".join(KEPT if size is None else str(size) for size in value)


class NewNames(Table):
    """New names by old ones; several may get the same."""

    says = "old names to new ones, e.g. {'input.1': 'pixels'}"

    def parsed(self, flag: str, text: Any) -> Any:
        """The names from texts of the form OLD=NEW."""
        return new_names(flag, text)

    def _one(self, name: str, key: str, value: Any) -> Any:
        if not (isinstance(value, str) and key and value):
            raise UsageError(f"{name} maps old names to new ones; {key!r} to {value!r} is none")
        return value


class Renames(NewNames):
    """New names by old ones, each new one once."""

    def checked(self, name: str, value: Any) -> Any:
        """Check that it maps names to other names, each new one once."""
        names = super().checked(name, value)
        twice = next((new for new in names.values() if list(names.values()).count(new) > 1), None)
        if twice is not None:
            raise UsageError(f"{name} gives two values the name {twice!r}")
        return names


class Release(Text):
    """A release of ONNX Runtime as text, e.g. ``1.20``; `Options` holds (major, minor)."""

    def arguments(self, flag: str, value: Any) -> list[str]:
        """The release, with a dot."""
        return [flag, ".".join(map(str, value))]


def commas(values: tuple[str, ...]) -> tuple[str, ...]:
    """The names in the values of a flag that may be repeated and takes lists."""
    return tuple(name for value in values for part in value.split(",") if (name := part.strip()))


def named_sizes(flag: str, values: tuple[str, ...]) -> dict[str, int]:
    """The sizes in the values of a flag that may be repeated and takes lists: ``batch=1,seq=128``.

    A name may hold commas, as ``max(a, b)`` does: a comma separates only where a number stands before it.

    Raises:
        UsageError: If a value is no NAME=VALUE, or contradicts another.
    """
    sizes: dict[str, int] = {}
    for match in _named(flag, values, r"(.*?\S.*?)=\s*(\d+)\s*(,|$)", "NAME=VALUE"):
        name, number = match[1].strip(), int(match[2])
        if sizes.setdefault(name, number) != number:
            raise UsageError(f"{flag} {name} is given twice: {sizes[name]} and {number}")
    return sizes


def _named(flag: str, values: tuple[str, ...], pattern: str, form: str) -> Iterator[re.Match[str]]:
    """The names in the values of a flag, with what is said of them; the last group of the pattern is what separates."""
    for value in values:
        rest: str | None = value
        while rest is not None:
            match = re.match(pattern, rest, flags=re.ASCII | re.DOTALL)
            if match is None:
                raise UsageError(f"{flag} takes {form}, several separated by commas, not {value!r}")
            yield match
            rest = rest[match.end() :] if match.group(match.re.groups) else None


def _extent(dim: str, extent: object) -> tuple[int, int]:
    """The least and the greatest size of a dimension."""
    what = f"the expected size of dimension {dim}"
    ends = extent if isinstance(extent, tuple | list) else (extent, extent)
    if len(ends) != 2:
        raise UsageError(f"{what} is a number, or the least and the greatest, not {extent!r}")
    low, high = (whole_number(what, end) for end in ends)
    if low > high:
        raise UsageError(f"{what} cannot be from {low} to {high}: the least comes first")
    return low, high


def named_extents(flag: str, values: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """The sizes in the values of a flag that may be repeated and takes lists: ``batch=1,seq=1..512``.

    Raises:
        UsageError: If a value is none, a range is empty, or a name is given twice.
    """
    extents: dict[str, tuple[int, int]] = {}
    pattern = r"(.*?\S.*?)=\s*(\d+)\s*(?:\.\.\s*(\d+)\s*)?(,|$)"
    for match in _named(flag, values, pattern, "NAME=SIZE or NAME=LOW..HIGH"):
        name = match[1].strip()
        extent = _extent(name, (int(match[2]), int(match[3] or match[2])))
        if extents.setdefault(name, extent) != extent:
            raise UsageError(f"{flag} {name} is given twice")
    return extents


def named_shapes(flag: str, values: tuple[str, ...]) -> dict[str, tuple[int | None, ...]]:
    """The shapes in the values of a flag that may be repeated, each ``NAME=SIZE,SIZE``.

    Raises:
        UsageError: If a value is none, or a name is given twice.
    """
    shapes: dict[str, tuple[int | None, ...]] = {}
    for text in values:
        name, equals, sizes = text.rpartition("=")
        if not equals or not name.strip():
            raise UsageError(f"{flag} takes NAME=SIZE,SIZE, e.g. x=1,3,224,224, not {text!r}")
        shape = _shape(flag, sizes)
        if shapes.setdefault(name.strip(), shape) != shape:
            raise UsageError(f"{flag} {name.strip()} is given twice")
    return shapes


def _shape(flag: str, text: str) -> tuple[int | None, ...]:
    """A shape from its sizes, separated by commas; ``_`` is a size that stays as it is."""
    sizes = [size.strip() for size in text.split(",")] if text.strip() else []
    for size in sizes:
        if size != KEPT and not (size.isascii() and size.isdecimal()):
            raise UsageError(f"{flag} takes sizes separated by commas, {KEPT} for one that stays, not {text!r}")
    return tuple(None if size == KEPT else int(size) for size in sizes)


def new_names(flag: str, values: tuple[str, ...]) -> dict[str, str]:
    """The names in the values of a flag that may be repeated, each ``OLD=NEW``.

    Raises:
        UsageError: If a value is none, or a name is given twice.
    """
    names: dict[str, str] = {}
    for text in values:
        old, _, new = text.rpartition("=")
        if not old or not new:
            raise UsageError(f"{flag} takes OLD=NEW, not {text!r}")
        if names.setdefault(old, new) != new:
            raise UsageError(f"{flag} gives {old!r} two names: {names[old]!r} and {new!r}")
    return names
