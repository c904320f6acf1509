"""The changes of a model's inputs and outputs that options ask for; outputs that go, and inputs that become int32."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.interface.change import Arrays, Insertion, InterfaceChange
from ortopt.options import Options
from ortopt.terminal_text import quoted

_BOUNDS = np.iinfo(np.int32)


class Int32Inputs(InterfaceChange):
    """Every input that must be given and is a tensor of int64 becomes one of int32.

    Args:
        model: The model; changed in place.
        token: Cancellation token.

    Raises:
        UsageError: If there is no such input, or one is an output, too: that one is int64 under the same name.
    """

    def __init__(self, model: ir.Model, token: CancellationToken) -> None:
        inputs = [value for value in model.graph.inputs if not value.is_initializer() and _is_int64(value)]
        if not inputs:
            raise UsageError("int32_inputs: no input is a tensor of int64")
        for value in inputs:
            if value in model.graph.outputs:
                raise UsageError(f"int32_inputs: input {quoted(value.name)} is an output, too, which stays int64")
        self._names = {value.name or "" for value in inputs}
        for value in inputs:
            readers, nodes = list(value.uses()), Insertion(model, value, token)
            result = nodes.node("Cast", [value], {"to": ir.DataType.INT64.value})
            value.type = ir.TensorType(ir.DataType.INT32)
            nodes.finish([(use.node, use.idx) for use in readers], result)

    def calls(self, inputs: Arrays) -> Sequence[Arrays]:
        """The same numbers as int64."""
        return [{name: self._as(np.int64, name, array) for name, array in inputs.items()}]

    def given(self, inputs: Arrays) -> Arrays:
        """The same numbers as int32."""
        for name in self._names & inputs.keys():
            array = np.asarray(inputs[name])
            if array.size and not _BOUNDS.min <= array.min() <= array.max() <= _BOUNDS.max:
                raise UsageError(f"input {quoted(name)} holds numbers beyond int32, which it is to be")
        return {name: self._as(np.int32, name, array) for name, array in inputs.items()}

    def _as(self, dtype: type[np.integer], name: str, array: object) -> object:
        return np.asarray(array).astype(dtype) if name in self._names else array


def _is_int64(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.type.dtype == ir.DataType.INT64


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


def are_asked(options: Options) -> bool:
    """Whether options ask for changes that the model itself must have before a run; new names come behind it."""
    return bool(
        options.keep_outputs
        or options.drop_outputs
        or options.int32_inputs
        or options.image_inputs
        or options.dynamic_batch
    )


def change(model: ir.Model, options: Options, token: CancellationToken = NEVER) -> tuple[InterfaceChange, ...]:
    """Make the changes that options ask for, in place.

    Args:
        model: The model, as it was loaded.
        options: Options of the run.
        token: Cancellation token.

    Returns:
        The changes, in the order in which they were made.

    Raises:
        UsageError: If one does not fit the model.
        InvalidModelError: If the model does not allow one.
    """
    from ortopt.interface.batch import DynamicBatch
    from ortopt.interface.images import Images

    made: list[InterfaceChange] = []
    if options.keep_outputs or options.drop_outputs:
        made.append(FewerOutputs(model, options.keep_outputs, options.drop_outputs, token))
    if options.image_inputs:
        both = next((name for name in options.image_inputs if name in options.input_shapes), None)
        if both is not None:
            raise UsageError(f"image_inputs and input_shapes name {quoted(both)}: give it its shape in a run before")
        made.append(Images(model, options.image_inputs, token))
    if options.int32_inputs:
        made.append(Int32Inputs(model, token))
    if options.dynamic_batch:
        if options.input_shapes:
            raise UsageError("dynamic_batch needs the sizes of the file: give input_shapes in a run of their own")
        made.append(DynamicBatch(model, options.dynamic_batch, token))
    return tuple(made)
