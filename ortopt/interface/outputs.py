"""Outputs that are left out: what serves only them goes."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.interface.change import Arrays, InterfaceChange
from ortopt.terminal_text import quoted


class FewerOutputs(InterfaceChange):
    """Fewer outputs; the inputs stay, so that callers give what they gave.

    Args:
        model: The model; changed in place.
        kept: Names of the outputs that stay, with ``*`` for any text; all if empty.
        dropped: Names of those that go, likewise.
        token: Cancellation token.

    Raises:
        UsageError: If a name matches no output, or no output stays.
    """

    def __init__(self, model: ir.Model, kept: Sequence[str], dropped: Sequence[str], token: CancellationToken) -> None:
        outputs = model.graph.outputs
        names = [value.name or "" for value in outputs]
        chosen = _matching(names, kept or ("*",)) - _matching(names, dropped)
        if not chosen:
            raise UsageError("no output would be left")
        self._names = chosen
        outputs[:] = [value for value in outputs if value.name in chosen]
        read = {value.name for value in model.graph.inputs if value.uses()}
        _remove_unused(model.graph, token)
        self._unread = read - {value.name for value in model.graph.inputs if value.uses()}

    def calls(self, inputs: Arrays) -> Sequence[Arrays]:
        """The same; zeros for what only the other outputs need, since any table has a row 0."""
        return [{name: np.zeros_like(array) if name in self._unread else array for name, array in inputs.items()}]

    def outputs(self, results: Sequence[Arrays]) -> Arrays:
        """Those that are kept."""
        return {name: array for name, array in results[0].items() if name in self._names}


def _matching(names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    """The outputs that patterns name."""
    found: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)}
        if not matching:
            near = get_close_matches(pattern, names, 1)
            hint = f"did you mean {quoted(near[0])}?" if near else f"the outputs: {', '.join(map(quoted, names))}"
            raise UsageError(f"no output is named {quoted(pattern)}; {hint}")
        found |= matching
    return found


def _remove_unused(graph: ir.Graph, token: CancellationToken) -> None:
    """Remove the nodes of a graph that nothing needs, and the weights that only they read."""
    needed: set[ir.Value] = set(graph.outputs)
    dead: list[ir.Node] = []
    for node in token.checked(reversed(graph)):
        if needed.isdisjoint(node.outputs):
            dead.append(node)
        else:
            needed.update(value for value in (*node.inputs, *scope.captured(node)) if value is not None)
    read = {value for node in dead for value in (*node.inputs, *scope.captured(node)) if value is not None}
    for node in dead:
        for inner in scope.with_nested(node):
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)
    graph.remove(dead)
    for value in (read - needed).intersection(graph.initializers.values()).difference(graph.inputs):
        graph.initializers.pop(value.name or "")
