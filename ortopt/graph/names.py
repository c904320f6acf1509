"""Names of values and nodes: which are taken, and how one is given."""

from __future__ import annotations

import copy
from typing import Any

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph.index import OpIndex


def set_name(value: ir.Value, name: str | None) -> None:
    """Rename a value, and with an initializer what it is written from.

    onnx-ir renames the tensor, too. But that may be shared, with the model of the caller for one: an initializer gets
    one of its own, and that of a Constant node keeps its name.
    """
    tensor = value.const_value
    if tensor is None or tensor.name == name:
        value.name = name
        return
    value.const_value = None
    value.name = name
    if value.producer() is None:
        tensor = _copied(tensor)
        tensor.name = name
    value.const_value = tensor


def _copied(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor with a name of its own, and the same content."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):  # whose name is that of what it wraps
        return ir.serde.TensorProtoTensor(copy.deepcopy(tensor.raw))
    return copy.copy(tensor)


class NameRegistry:
    """The names that values and nodes of a model bear, and new ones.

    Args:
        index: The nodes of each graph of the model, kept current.
    """

    def __init__(self, index: OpIndex) -> None:
        self._index = index
        self._names: set[str] | None = None
        self._numbers: dict[str, int] = {}

    def register(self, name: str) -> None:
        """Report a name that something has been given."""
        if self._names is not None:
            self._names.add(name)

    def fresh(self, hint: str) -> str:
        """A name that no value and no node of the model bears.

        Args:
            hint: What it shall look like.
        """
        names = self.collect()
        name, number = hint, self._numbers.get(hint, 0)
        while name in names:
            number += 1
            name = f"{hint}_{number}"
        if number:
            self._numbers[hint] = number  # thousands may ask with one hint
        names.add(name)
        return name

    def collect(self, token: CancellationToken = NEVER) -> set[str]:
        """The names that values and nodes of the model bear. Linear in the nodes the first time, free afterwards.

        Args:
            token: Cancellation token.
        """
        if self._names is None:
            names: set[Any] = set()
            for graph in self._index.graphs():
                names.update(value.name for value in graph.inputs)
                names.update(token.checked(graph.initializers))
                for node in token.checked(graph):
                    names.add(node.name)
                    for value in node.outputs:
                        names.add(value.name)
            names.discard(None)
            names.discard("")
            self._names = names
        return self._names

    def forget(self) -> None:
        """Let the names of what has gone be given again. The next `fresh` is linear in the nodes."""
        self._names = None
        self._numbers.clear()

    def name_node(self, node: ir.Node, near: ir.Node | None) -> None:
        """Name a new node, and its outputs, where they have no names.

        Args:
            node: The node.
            near: A node whose name its own begins with.
        """
        if not node.name:
            hint = near.name if near is not None and near.name else node.op_type
            node.name = self.fresh(f"{hint}/{node.op_type}" if hint != node.op_type else hint)
        for value in node.outputs:
            if value.name is None:
                set_name(value, self.fresh(f"{node.name}_output"))


__all__ = ["NameRegistry", "set_name"]
