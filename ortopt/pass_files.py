"""The files of the passes: which there are, and the transformer that each defines."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from ortopt.errors import RegistrationError
from ortopt.rule import RewriteRule, check_rule
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer, check_contract, check_options

Kind = type[GraphTransformer]


def names() -> list[str]:
    """The names of the passes: the stems of their files."""
    package = importlib.import_module(PASSES_PACKAGE)
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def load(name: str) -> Kind:
    """The transformer of a pass.

    Args:
        name: The stem of its file.

    Raises:
        RegistrationError: If the file does not load, or does not define one transformer.
    """
    path = f"{PASSES_PACKAGE}.{name}"
    try:
        module = importlib.import_module(path)
    except Exception as error:
        raise RegistrationError(f"the pass file {path} does not load: {error}") from error
    kinds = list(_own_kinds(module))
    if len(kinds) != 1:
        raise RegistrationError(f"the pass file {path} must define one transformer; it defines {len(kinds)}")
    return kinds[0]


def instance(kind: Kind, origin: str = "") -> GraphTransformer:
    """An instance of a transformer, which is checked.

    Args:
        kind: The class.
        origin: Where it comes from, for messages; its module if empty.

    Raises:
        RegistrationError: If it cannot be made, or its declarations make no sense.
    """
    try:
        transformer = kind()
        check_options(transformer)
    except Exception as error:
        where = origin or kind.__module__
        raise RegistrationError(f"{where}: {kind.__qualname__} cannot be instantiated: {error}") from error
    check(transformer)
    return transformer


def check(transformer: GraphTransformer) -> None:
    """Refuse a transformer whose declarations or options make no sense.

    Raises:
        RegistrationError: If a declaration makes none; the message names class and declaration.
        UsageError: If an option makes none.
    """
    check_contract(transformer)
    check_options(transformer)
    if isinstance(transformer, RewriteRule):
        check_rule(transformer)


def _own_kinds(module: Any) -> Iterator[Kind]:
    for item in vars(module).values():
        if (
            inspect.isclass(item)
            and item.__module__ == module.__name__
            and GraphTransformer in item.__mro__  # issubclass asks all subclasses, for each class that is none
            and issubclass(item, GraphTransformer)
            and not inspect.isabstract(item)
        ):
            yield item


__all__ = ["Kind", "check", "instance", "load", "names"]
