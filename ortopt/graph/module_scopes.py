"""The modules around nodes that PyTorch's exporter writes into their metadata: read, and joined for new nodes.

It writes the same list three times: ``['', 'm', 'm.encoder', 'add_3']``, each module with the names of those around it,
and last the node's own; the classes of these modules, with the operator; and both as ``m: Model/m.encoder: Encoder/…``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Final

from ortopt.graph.scoped_names import Path, common

SCOPES_KEY: Final = "pkg.torch.onnx.name_scopes"
"""Where it names the modules around a node."""

CLASSES_KEY: Final = "pkg.torch.onnx.class_hierarchy"
NAMESPACE_KEY: Final = "namespace"

_MAX_TEXT: Final = 20_000
_NO_MODULE: Final = "_empty_nn_module_stack"
"""What it calls the module of a node of which it knows none: the name begins so."""


def read_list(text: str) -> Path | None:
    """The texts in a list of them; None where it is none."""
    if len(text) > _MAX_TEXT:
        return None
    try:
        items = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return tuple(items) if isinstance(items, list) and all(isinstance(item, str) for item in items) else None


def modules(text: str) -> Path | None:
    """The modules around a node, outermost first, each by its own name; None where the list cannot be read.

    Args:
        text: What stands under `SCOPES_KEY`: each item says the one before it again.
    """
    scopes = read_list(text)
    if scopes is None:
        return None
    path: list[str] = []
    around = ""
    for scope in scopes[:-1]:
        own = scope[len(around) + 1 :] if around and scope.startswith(f"{around}.") else scope
        if own:
            path.append(own)
            around = scope
    return tuple(path)


def joined(metadata: Iterable[Mapping[str, str]], name: str, op: str) -> dict[str, str]:
    """What a new node says of its modules: those that all nodes are in that it stands for.

    Args:
        metadata: The metadata of these nodes.
        name: The new node's own name.
        op: Its op.

    Returns:
        Entries of its metadata; those of its only origin, or of origins that say the same, as they are.
    """
    given = list(metadata)
    entries: dict[str, str] = {}
    depth: int | None = None  # layers are of one class, and different modules
    for key, read, write, own in (
        (SCOPES_KEY, read_list, _list_text, name),
        (CLASSES_KEY, read_list, _list_text, op),
        (NAMESPACE_KEY, _segments, "/".join, f"{name.replace('/', '.')}: {op}"),
    ):
        said = dict.fromkeys(text for entry in given if (text := entry.get(key)))
        texts = [text for text in said if not text.lstrip("['").startswith(_NO_MODULE)] or list(said)[:1]
        paths = [path for text in texts if (path := read(text)) is not None]
        if len(texts) == 1:
            entries[key] = texts[0]
        elif paths:
            shared = common(path[:-1] for path in paths)[:depth]
            depth = len(shared) if depth is None else depth
            entries[key] = write((*shared, own))
    return entries


def _list_text(items: Path) -> str:
    return str(list(items))


def _segments(text: str) -> Path:
    return tuple(text.split("/"))
