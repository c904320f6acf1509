"""Names of values and nodes: which are taken, how one is given, and new ones for the inputs and outputs of a model."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.graph.index import OpIndex
from ortopt.onnx_ir_internals import initializers_of
from ortopt.semantics import QUANTIZATION_KEY
from ortopt.terminal_text import quoted


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


def check_names(model: ir.Model, names: Mapping[str, str], token: CancellationToken = NEVER) -> None:
    """Refuse new names that cannot be given; the model is not changed.

    Args:
        model: The model.
        names: New names by old ones.
        token: Cancellation token.

    Raises:
        UsageError: If an old name is none of an input or output, or a new one is that of another value.
    """
    if not names:
        return
    interface = [value.name or "" for value in (*model.graph.inputs, *model.graph.outputs)]
    for old in names:
        if old not in interface:
            near = get_close_matches(old, interface, 1)
            hint = f"; did you mean {quoted(near[0])}?" if near else ""
            raise UsageError(f"no input or output is named {quoted(old)}{hint}")
    new_names = set(names.values())
    for value in _values(model, token):
        if value.name in new_names and value.name not in names:
            raise UsageError(f"the name {quoted(value.name)} is taken: another value of the model bears it")


def rename(model: ir.Model, names: Mapping[str, str], token: CancellationToken = NEVER) -> None:
    """Give inputs and outputs new names, in place; what else bears such a name by now gets another.

    A value that is both input and output has one name, and so has one new name.

    Args:
        model: The model; `check_names` has accepted the names for the original.
        names: New names by old ones.
        token: Cancellation token.
    """
    if not names:
        return
    interface = dict.fromkeys((*model.graph.inputs, *model.graph.outputs))
    renamed = {value: names[value.name] for value in interface if value.name and value.name in names}
    values = list(_values(model, token))
    taken = {value.name for value in values} | set(names.values())
    new_names = set(names.values())
    for value in values:
        if value.name in new_names and value not in renamed:
            set_name(value, _fresh(value.name or "", taken))
    for value in renamed:  # first out of each other's way: two may exchange their names
        set_name(value, _fresh(value.name or "", taken))
    for value, name in renamed.items():
        set_name(value, name)
    _rename_in_annotations(values, names)


def _values(model: ir.Model, token: CancellationToken) -> Iterator[ir.Value]:
    """All values of the main graph and of the graphs nested in it, each once."""
    seen: set[ir.Value] = set()
    for graph in scope.below(model.graph, token):
        computed = (value for node in token.checked(graph) for value in node.outputs)
        for value in itertools.chain(graph.inputs, initializers_of(graph).values(), computed):
            if value not in seen:
                seen.add(value)
                yield value


def _fresh(name: str, taken: set[str | None]) -> str:
    fresh = next(text for i in itertools.count(1) if (text := f"{name}_{i}") not in taken)
    taken.add(fresh)
    return fresh


def _rename_in_annotations(values: list[ir.Value], names: Mapping[str, str]) -> None:
    """Quantization annotations name the values that hold scales and zero points."""
    for value in values:
        annotation = value.meta.get(QUANTIZATION_KEY)
        if annotation:
            value.meta[QUANTIZATION_KEY] = {key: names.get(name, name) for key, name in annotation.items()}
