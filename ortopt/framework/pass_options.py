"""The options of a pass: their types, as its dataclass declares them, and the values and texts that they take."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Final, Literal, NewType

from msgspec import Struct

from ortopt.errors import UsageError
from ortopt.option_kinds import parse_size

LEAST: Final = "least"
"""The key of a field's metadata for the least number; else that is 0, unless the default is negative."""

_NONE_FITS: Final = object()
_SWITCHES: Final = {"true": True, "1": True, "false": False, "0": False}


class PassOption(Struct, frozen=True):
    """An option of a pass.

    Attributes:
        name: Its name.
        types: The types of its values; None among them allows None.
        least: The least number that it takes; None is any.
        shown: Its type, as its declaration spells it.
    """

    name: str
    types: tuple[Any, ...]
    least: float | None
    shown: str

    def checked(self, value: Any) -> Any:
        """A value, as the pass gets it.

        Args:
            value: The value.

        Raises:
            UsageError: If it is of another type, or too small.
        """
        kinds = " or ".join(_KINDS.get(type_) or _type_name(type_) for type_ in self.types)
        return self._taken(_value_of, value, f"{self.name} must be {kinds}, not {value!r}")

    def parsed(self, text: str) -> Any:
        """A value that is spelled as text.

        Args:
            text: The text.

        Raises:
            UsageError: If it is of another type, or too small.
        """
        return self._taken(_value_in, text, f"{self.name}={text} is no {' or '.join(map(_type_name, self.types))}")

    def _taken(self, read: Callable[[Any, Any], tuple[bool, Any]], given: Any, otherwise: str) -> Any:
        """What the first type that a value is of makes of it."""
        value: Any = next((taken for known, taken in (read(type_, given) for type_ in self.types) if known), _NONE_FITS)
        if value is _NONE_FITS:
            raise UsageError(otherwise)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and self.least is not None and not value >= self.least:
            raise UsageError(f"{self.name} must be at least {self.least:g}, not {value}")
        return value


_KINDS: Final[Mapping[Any, str]] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    types.NoneType: "None",
}


def options_of(kind: type) -> dict[str, PassOption]:
    """The options that a dataclass declares, by name.

    Args:
        kind: The dataclass.

    Raises:
        UsageError: If it is none.
    """
    if not dataclasses.is_dataclass(kind):
        raise UsageError(f"Options must be a dataclass, and {kind!r} is none")
    return {field.name: _option(field, kind) for field in dataclasses.fields(kind) if field.init}


def checked(transformer: str, kind: type, settings: Mapping[str, object]) -> dict[str, Any]:
    """The settings of a pass, as its dataclass takes them.

    Args:
        transformer: The transformer's name.
        kind: The dataclass.
        settings: Values by name.

    Raises:
        UsageError: If there is no such option, or it does not take the value.
    """
    known = options_of(kind) if settings else {}
    for name in settings:
        if name not in known:
            raise UsageError(f"{transformer} does not take {name}; its options: {', '.join(known) or 'none'}")
    try:
        return {name: known[name].checked(value) for name, value in settings.items()}
    except UsageError as error:
        raise UsageError(f"{transformer}: {error}") from error


def chosen(options: Any) -> dict[str, Any]:
    """The options that are not the defaults, by name.

    Args:
        options: An instance of a dataclass.
    """
    values = ((field, getattr(options, field.name)) for field in dataclasses.fields(options) if field.init)
    return {field.name: value for field, value in values if value is not field.default}


def _option(field: dataclasses.Field[Any], kind: type) -> PassOption:
    default = field.default_factory() if callable(field.default_factory) else field.default
    hint = _hint(field, kind, default)
    shown = field.type if isinstance(field.type, str) else _type_name(hint)
    is_negative = isinstance(default, int | float) and default < 0
    least = field.metadata.get(LEAST, None if is_negative else 0)
    return PassOption(field.name, _alternatives(hint), least, shown)


def _hint(field: dataclasses.Field[Any], kind: type, default: object) -> Any:
    """The type that is declared, whether it is written as itself or, with ``annotations`` of the future, as text."""
    if not isinstance(field.type, str):
        return field.type
    owner = next(base for base in kind.__mro__ if field.name in inspect.get_annotations(base))
    alone = type(owner.__name__, (), {"__annotations__": {field.name: field.type}, "__module__": owner.__module__})
    try:
        return typing.get_type_hints(alone)[field.name]
    except Exception:  # a name that only type checkers see, or that is local to a function
        return Any if default is None or default is dataclasses.MISSING else type(default)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union; names and notes that stand for a type or around it are taken away."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(one for part in typing.get_args(hint) for one in _alternatives(part))
    if typing.get_origin(hint) in (Annotated, Final):
        return _alternatives(typing.get_args(hint)[0])
    if isinstance(hint, NewType):
        return _alternatives(hint.__supertype__)
    if type(hint).__name__ == "TypeAliasType":  # ``type Name = …``, from Python 3.12 on
        return _alternatives(hint.__value__)
    return (types.NoneType if hint is None else hint,)


def _value_of(type_: Any, value: Any) -> tuple[bool, Any]:
    """Whether a value is of a type, and what the pass gets."""
    if type_ is int:
        try:
            return not isinstance(value, bool), operator.index(value)
        except TypeError:  # arrays have an index too, if they hold one whole number
            return False, None
    if type_ is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        return is_number, value
    if typing.get_origin(type_) is Literal:
        return any(value is one or (type(value) is type(one) and value == one) for one in typing.get_args(type_)), value
    if isinstance(type_, type) and issubclass(type_, enum.Enum):
        members = [one for one in type_ if value is one or (type(value) is type(one.value) and value == one.value)]
        return bool(members), members[0] if members else None
    plain = typing.get_origin(type_) or type_
    if plain is Any or not isinstance(plain, type):
        return True, value
    return isinstance(value, plain) and _elements_fit(plain, typing.get_args(type_), value), value


def _elements_fit(plain: type, declared: tuple[Any, ...], value: Any) -> bool:
    """Whether what a collection holds is of the types that its own type declares."""
    if not declared or not issubclass(plain, Collection):
        return True
    if issubclass(plain, tuple):
        kinds = [declared[0]] * len(value) if declared[-1] is Ellipsis else declared
        return len(kinds) == len(value) and all(map(_fits, kinds, value))
    if issubclass(plain, Mapping):
        return all(_fits(declared[0], key) and _fits(declared[-1], one) for key, one in value.items())
    return all(_fits(declared[0], one) for one in value)


def _fits(hint: Any, value: Any) -> bool:
    return any(_value_of(type_, value)[0] for type_ in _alternatives(hint))


def _value_in(type_: Any, text: str) -> tuple[bool, Any]:
    """Whether a text spells a value of a type, and that value."""
    try:
        if type_ is bool:
            return True, _SWITCHES[text.lower()]
        if type_ is int:
            is_size = text[-1:].isalpha()  # only with a unit may there be a fraction
            return True, parse_size(text) if is_size else int(text)
        if type_ is float:
            return _value_of(float, float(text))
        if type_ is types.NoneType:
            return text.lower() == "none", None
        if typing.get_origin(type_) is Literal:
            return True, next(one for one in typing.get_args(type_) if str(one) == text)
        if isinstance(type_, type) and issubclass(type_, enum.Enum):
            return True, next(member for member in type_ if str(member.value) == text)
    except (KeyError, ValueError, UsageError, StopIteration):
        return False, None
    return type_ is str, text


def _type_name(type_: Any) -> str:
    if type_ is types.NoneType:
        return "None"
    if typing.get_origin(type_) is Literal:
        return " or ".join(map(repr, typing.get_args(type_)))
    if isinstance(type_, type) and not typing.get_args(type_):
        return type_.__name__
    return str(type_).replace("typing.", "")
