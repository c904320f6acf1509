"""The files of passes: which there are, and the transformers that each defines.

They lie in folders below the package of passes, one for each family. A file whose name begins with ``_`` is what passes
of a family share, and a class whose name does is what passes of a file share.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from typing import Any

from ortopt.discovery import pass_manifest
from ortopt.errors import RegistrationError
from ortopt.rule import RewriteRule, check_rule
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer, check_contract, check_options, name_key

Kind = type[GraphTransformer]


def paths() -> dict[str, str]:
    """The files of passes, by module below the package of passes (``linear.matmul_add_fusion``), in sorted order.

    Where the package is in an archive, whose folders cannot be listed, these are the modules of the manifest.
    """
    package = importlib.import_module(PASSES_PACKAGE)
    found = {}
    for root in package.__path__:
        for folder, _, files in os.walk(root):
            prefix = os.path.relpath(folder, root).replace(os.sep, ".").removeprefix(".")
            for name in files:
                if name.endswith(".py") and not name.startswith("_"):
                    found[f"{prefix}.{name[:-3]}".removeprefix(".")] = os.path.join(folder, name)  # noqa: PTH118
    return dict(sorted(found.items())) if found else dict.fromkeys(pass_manifest.read(), "")


def load(module: str) -> list[Kind]:
    """The transformers of a file.

    Args:
        module: The module below the package of passes.

    Raises:
        RegistrationError: If the file does not load, defines no transformer, or one that is not named like the file.
    """
    path = f"{PASSES_PACKAGE}.{module}"
    try:
        loaded = importlib.import_module(path)
    except Exception as error:
        raise RegistrationError(f"the pass file {path} does not load: {error}") from error
    kinds = list(_own_kinds(loaded))
    if not kinds:
        raise RegistrationError(f"the pass file {path} defines no transformer")
    stem = module.rpartition(".")[2]
    if len(kinds) == 1 and name_key(kinds[0].__name__) != name_key(stem):
        raise RegistrationError(f"{path}.{kinds[0].__name__}: the only class of a file must be named like it, {stem}")
    return kinds


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
            and not item.__name__.startswith("_")  # what several passes of the file derive from
            and not inspect.isabstract(item)
        ):
            yield item
