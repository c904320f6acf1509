"""New names for inputs and outputs of a model. Nodes and nested graphs hold values, not names: they follow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.graph.names import set_name
from ortopt.onnx_ir_internals import initializers_of
from ortopt.semantics import QUANTIZATION_KEY
from ortopt.terminal_text import quoted


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


__all__ = ["check_names", "rename"]
