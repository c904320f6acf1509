"""Names of values and nodes: which are taken, how one is given, and new ones for the inputs and outputs of a model."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.onnx_ir_internals import get_meta, initializers_of
from ortopt.semantics import QUANTIZATION_KEY
from ortopt.terminal_text import quoted

_NUMBER: Final = re.compile(r"(?<=.)_\d+$")
"""What makes a name unique; a number takes the place of another one, so that names do not grow."""

_IS_NEW: Final = "ortopt.named"
"""In the ``meta`` of a value: its name is no exporter's, but follows that of the node that computes it."""


def follows_node(value: ir.Value) -> bool:
    """Whether a value's name follows that of its node: what replaces it has no use for the name."""
    return get_meta(value, _IS_NEW) is not None and not value.is_graph_output()


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
        graphs: Gives the graphs of the model as they are now.
    """

    def __init__(self, graphs: Callable[[], Iterable[ir.Graph]]) -> None:
        self._graphs = graphs
        self._names: set[str] | None = None
        self._numbers: dict[str, int] = {}

    def register(self, name: str) -> None:
        """Report a name that something has been given."""
        if self._names is not None:
            self._names.add(name)

    def fresh(self, hint: str) -> str:
        """A name that no value and no node of the model bears.

        Args:
            hint: What it shall look like: it is taken if it is free, else with another number at its end.
        """
        names = self.collect()
        name = hint
        if name in names:
            stem = _NUMBER.sub("", hint)
            number = self._numbers.get(stem, 0)
            while name in names:
                number += 1
                name = f"{stem}_{number}"
            self._numbers[stem] = number  # thousands may ask with one hint
        names.add(name)
        return name

    def collect(self, token: CancellationToken = NEVER) -> set[str]:
        """The names that values and nodes of the model bear. Linear in the nodes the first time, free afterwards.

        Args:
            token: Cancellation token.
        """
        if self._names is None:
            names: set[Any] = set()
            for graph in self._graphs():
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

    def name_results(self, node: ir.Node) -> None:
        """Name the outputs of a node that have no names after it."""
        for value in node.outputs:
            if value.name is None:
                set_name(value, self.fresh(f"{node.name or node.op_type}_output"))
                value.meta[_IS_NEW] = True


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


def unused(hint: str, taken: set[Any], form: str = "{}_{}") -> str:
    """A name that is not taken, and is from now on: the hint, else with a number from 2 on.

    Args:
        hint: What it shall look like.
        taken: The names that are taken.
        form: How a number is put behind the hint.
    """
    candidates = itertools.chain([hint], (form.format(hint, number) for number in itertools.count(2)))
    name = next(candidate for candidate in candidates if candidate not in taken)
    taken.add(name)
    return name


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
