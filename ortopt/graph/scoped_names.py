"""The rule by which new nodes are named: a node's scope is the deepest one that holds all that it stands for.

The scope of a node is its name up to the last slash, as exporters write it: ``/encoder/layer.0`` of
``/encoder/layer.0/MatMul``. A name without a slash says nothing of a scope. Names of new nodes follow from their
origins alone, never from what stands beside them, so that they do not grow when a node is rewritten again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

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
