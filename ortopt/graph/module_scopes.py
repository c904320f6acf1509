"""The modules around nodes that PyTorch's exporter writes into their metadata: read, and joined for new nodes.

It writes the same list three times: ``['', 'm', 'm.encoder', 'add_3']``, each module with the names of those around it,
and last the node's own; the classes of these modules, with the operator; and both as ``m: Model/m.encoder: Encoder/…``.

The rule by which new nodes are named: a node's scope is the deepest one that holds all that it stands for.

The scope of a node is its name up to the last slash, as exporters write it: ``/encoder/layer.0`` of
``/encoder/layer.0/MatMul``. A name without a slash says nothing of a scope. Names of new nodes follow from their
origins alone, never from what stands beside them, so that they do not grow when a node is rewritten again and again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import onnx_ir as ir

from ortopt.terminal_text import node_name

Path: TypeAlias = tuple[str, ...]

_SEPARATOR = "/"


def scope_of(name: str) -> Path | None:
    """The components of a name before the last one, ``('', 'a')`` of ``/a/Relu``; None if it says nothing of them."""
    around, slash, _ = name.rpartition(_SEPARATOR)
    return tuple(around.split(_SEPARATOR)) if slash else None


def common(paths: Iterable[Path]) -> Path:
    """What all paths begin with."""
    given = iter(paths)
    shared = next(given, ())
    for path in given:
        length = next((at for at, (a, b) in enumerate(zip(shared, path, strict=False)) if a != b), None)
        shared = shared[: min(len(shared), len(path)) if length is None else length]
    return shared


def common_scope(origins: Iterable[ir.Node]) -> Path:
    """The deepest scope that holds some nodes, as far as their names, or those of their results, say anything of it."""
    scopes = (scope_of(node_name(origin)) for origin in origins)
    return common(scope for scope in scopes if scope is not None)


def scoped_name(node: ir.Node, scope: Path, origins: Sequence[ir.Node]) -> str:
    """A new node's name, but for the number that makes it unique.

    It ends as that of its only origin does if this is of the same op, else with the op.

    Args:
        node: The new node.
        scope: Where it stands: the `common_scope` of its origins.
        origins: The nodes that it stands for.
    """
    own = node.op_type.rpartition(_SEPARATOR)[2]
    if len(origins) == 1 and origins[0].name and origins[0].op_type == node.op_type:
        own = origins[0].name.rpartition(_SEPARATOR)[2] or own
    while scope and scope[-1] == own:  # a name says nothing twice
        scope = scope[:-1]
    return _SEPARATOR.join((*scope, own))


def constant_name(readers: Sequence[ir.Node]) -> str:
    """What a new constant is called, but for the number that makes its name unique: after its reader, if it has one.

    Args:
        readers: The nodes that it is for.
    """
    if len(readers) == 1:
        return f"{node_name(readers[0]) or readers[0].op_type}_constant"
    return _SEPARATOR.join((*common_scope(readers), "constant"))


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
