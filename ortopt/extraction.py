"""Extract a part of a model: the nodes between some values and others, with the weights that they need, and no more."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import onnx_ir as ir
from msgspec import structs

from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.graph.facts import dims_of
from ortopt.graph.names import check_names
from ortopt.graph.names import rename as rename_interface
from ortopt.graph.symbolic import UNKNOWN, is_invented
from ortopt.onnx_ir_internals import initializers_of
from ortopt.option_kinds import Names, Renames
from ortopt.options import Options
from ortopt.semantics import QUANTIZATION_KEY
from ortopt.serialization import shadowed_names
from ortopt.serialization.checks import specification
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import SOURCE_KEY, load
from ortopt.terminal_text import quoted

if TYPE_CHECKING:
    from ortopt.serialization.load import Source
    from ortopt.serialization.save import Saved

_MAX_NAMED: Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a model, a model itself.

    Attributes:
        model: The model; its weights are those of the original, mapped.
        nodes: How many of the original's nodes it has, those in nested graphs and functions left out.
        of_nodes: How many nodes the original has.
    """

    model: ir.Model
    nodes: int
    of_nodes: int

    def save(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        external_data: Literal["auto", "inline", "copy", "reuse"] = "auto",
    ) -> Saved:
        """Write it, atomically.

        Args:
            path: The file, or a binary stream.
            external_data: Where weights go: inside the file, copied beside it, or left in the original's files; auto is
                inside, unless they are too large for that.

        Raises:
            OutputError: If it cannot be written.
        """
        from ortopt.serialization.save import save

        return save(self.model, Path(path) if isinstance(path, str) else path, external_data=external_data)


def extract(
    model: Source,
    *,
    inputs: str | Sequence[str] | None = None,
    outputs: str | Sequence[str] | None = None,
    rename: Mapping[str, str] | str | None = None,
    cancellation: CancellationToken = NEVER,
) -> Part:
    """Extract the part of a model that computes some values from others.

    Args:
        model: A path, the bytes of a file, a binary stream, an `onnx.ModelProto`, an `ir.Model` or what holds one, as
            ``torch.onnx.ONNXProgram``; it is not changed.
        inputs: Names of values of the main graph that become inputs, weights among them; None for those of the model's
            inputs that are needed.
        outputs: Names of values of the main graph that become outputs; None for those of the model.
        rename: New names of inputs and outputs.
        cancellation: Cancellation token.

    Raises:
        UsageError: A name is that of no value, an input does not cut, an output needs an input of the model that is not
            among the inputs, or the type of an input is not known.
        InvalidModelError: The model is broken.
        OptimizationCancelled: The token was set.
    """
    wanted = [
        None if names is None else _checked(what, names) for what, names in (("inputs", inputs), ("outputs", outputs))
    ]
    names = Renames().checked("rename", rename)
    if inputs is None and outputs is None:
        raise UsageError("say by inputs or outputs which part of the model is meant")
    loaded = load(model, cancellation)
    scope.attach(loaded, Options(), cancellation)
    infer_model(loaded, cancellation)
    cut = _Cut(loaded, wanted[0], wanted[1], cancellation)
    part = Part(loaded, len(cut.nodes), len(loaded.graph))
    cut.apply()
    check_names(loaded, names, cancellation)
    rename_interface(loaded, names, cancellation)
    shadowed_names.restore(loaded, cancellation)
    validate(loaded, token=cancellation)
    specification.check(loaded, cancellation)
    return part


def _checked(what: str, names: str | Sequence[str]) -> tuple[str, ...]:
    """The names, each once."""
    checked: tuple[str, ...] = Names().checked(what, names)
    if not checked:
        raise UsageError(f"{what} names nothing")
    twice = next((name for name in checked if checked.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{what} names {quoted(twice)} twice")
    return checked


class _Cut:
    """Where a model is cut, and what stays.

    Args:
        model: The model, inferred.
        inputs: Names of the values that become inputs; None for the inputs of the model.
        outputs: Names of the values that become outputs; None for those of the model.
        token: Cancellation token.

    Attributes:
        nodes: The nodes that stay.

    Raises:
        UsageError: It cannot be cut there.
    """

    def __init__(
        self, model: ir.Model, inputs: Sequence[str] | None, outputs: Sequence[str] | None, token: CancellationToken
    ) -> None:
        self._model = model
        self._graph = graph = model.graph
        self._token = token
        computed = (value for node in token.checked(graph) for value in node.outputs if value.name)
        values = (*graph.inputs, *initializers_of(graph).values(), *computed)
        self._by_name = {value.name or "": value for value in values}
        self._outputs = list(graph.outputs) if outputs is None else [self._value(name) for name in outputs]
        self._given = None if inputs is None else [self._value(name) for name in inputs]
        self._cuts = set(graph.inputs if self._given is None else self._given)
        needed = dict(self._above(self._outputs))
        self._reached = needed.keys()
        self.nodes = {node for node in needed.values() if node is not None}
        self._check()

    def _value(self, name: str) -> ir.Value:
        """The value of the main graph that bears a name."""
        if name in self._by_name:
            return self._by_name[name]
        for graph in scope.graphs(self._model, self._token):
            if graph is not self._graph and any(value.name == name for node in graph for value in node.outputs):
                raise UsageError(f"{quoted(name)} is computed in {scope.label(graph)}: only the main graph can be cut")
        near = get_close_matches(name, self._by_name, 1)
        hint = f"; did you mean {quoted(near[0])}?" if near else ""
        raise UsageError(f"no value of the model is named {quoted(name)}{hint}")

    def _above(self, values: Iterable[ir.Value]) -> Iterator[tuple[ir.Value, ir.Node | None]]:
        """Values and all that they need, up to the cuts, each once with the node that computes it."""
        pending, seen = list(values), set[ir.Value]()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            node = None if value in self._cuts else value.producer()
            yield value, node
            if node is not None:
                self._token.check()
                pending.extend(operand for operand in (*node.inputs, *scope.captured(node)) if operand is not None)

    def _check(self) -> None:
        """Refuse cuts that leave an output without what it needs, and those that cut nothing."""
        if self._given is None:
            return
        for value in self._outputs:
            if value in self._cuts:
                raise UsageError(f"{quoted(value.name)} is to be an input and an output")
        for value in self._given:
            if value not in self._reached:
                others = [quoted(other.name) for other in self._given if other is not value]
                beside = f" beside {', '.join(others[:_MAX_NAMED])}" if others else ""
                raise UsageError(f"input {quoted(value.name)} does not cut: no output needs it{beside}")
        missing = [
            value.name
            for value in self._graph.inputs
            if value in self._reached and value not in self._cuts and not value.is_initializer()
        ]
        if missing:
            named = ", ".join(map(quoted, missing[:_MAX_NAMED]))
            more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
            needing = f"{self._needing(missing[0])} needs the model's"
            raise UsageError(
                f"{needing} input {named}: add it to the inputs"
                if len(missing) == 1
                else f"{needing} inputs {named}{more}: add them to the inputs"
            )

    def _needing(self, name: str | None) -> str:
        """The first output that needs a value, in words."""
        for output in self._outputs:
            if any(value.name == name for value, _ in self._above([output])):
                return f"output {quoted(output.name)}"
        return "an output"

    def apply(self) -> None:
        """Make the model its own part."""
        graph = self._graph
        if self._given is None:
            inputs = [value for value in graph.inputs if value in self._reached]
        else:
            inputs = [self._as_input(value) for value in self._given]
        graph.outputs[:] = self._outputs
        graph.inputs[:] = inputs
        self._remove_nodes()
        self._remove_initializers()
        _remove_functions(self._model)
        _remove_imports(self._model)
        origin = self._model.meta.get(SOURCE_KEY)
        if origin is not None:  # a part may be small where the whole was not
            self._model.meta[SOURCE_KEY] = structs.replace(origin, external=False)

    def _as_input(self, value: ir.Value) -> ir.Value:
        """An input that takes the place of a value."""
        if value.is_graph_input():
            return value
        kind = value.type
        if kind is None and value.const_value is not None:
            kind = ir.TensorType(value.const_value.dtype)
        if kind is None:
            raise UsageError(f"the type of {quoted(value.name)} is not known: it cannot be an input")
        dims = dims_of(value)
        shape = None if dims is None else ir.Shape([UNKNOWN if is_invented(dim) else dim for dim in dims])
        name = value.name or ""
        new = ir.Value(name=name, type=kind, shape=shape, doc_string=value.doc_string)
        if QUANTIZATION_KEY in value.meta:
            new.meta[QUANTIZATION_KEY] = value.meta[QUANTIZATION_KEY]
        for graph in scope.below(self._graph):  # a nested graph may give what it has captured
            for position, output in enumerate(graph.outputs):
                if output is value:
                    graph.outputs[position] = new
        value.replace_all_uses_with(new)
        if value.is_initializer():
            self._graph.initializers.pop(name)
        else:  # its node may stay, for another result
            value.name = next(
                text for i in range(len(self._by_name) + 1) if (text := f"{name}_{i}") not in self._by_name
            )
            self._by_name[value.name] = value
        return new

    def _remove_nodes(self) -> None:
        dead = [node for node in self._token.checked(self._graph) if node not in self.nodes]
        for node in dead:
            for inner in scope.with_nested(node):
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)
        self._graph.remove(dead)

    def _remove_initializers(self) -> None:
        """Remove the weights that nothing uses, and annotations that speak of what has gone."""
        graph = self._graph
        kept = {value for value in initializers_of(graph).values() if value in self._reached}
        computed = [value for node in graph for value in node.outputs]
        for value in (*graph.inputs, *kept, *computed):
            names = value.meta.get(QUANTIZATION_KEY, {}).values()
            named = [graph.initializers[name] for name in names if name in graph.initializers]
            if len(named) == len(names):
                kept.update(named)
            else:
                del value.meta[QUANTIZATION_KEY]
        for name, value in tuple(graph.initializers.items()):
            if value not in kept:
                graph.initializers.pop(name)


def _remove_functions(model: ir.Model) -> None:
    """Remove the local functions that are not called."""
    called: set[ir.OperatorIdentifier] = set()
    pending = list(_nodes([model.graph]))
    while pending:
        identifier = pending.pop().op_identifier()
        if identifier in model.functions and identifier not in called:
            called.add(identifier)
            pending.extend(_nodes([model.functions[identifier].graph]))
    for identifier in set(model.functions) - called:
        del model.functions[identifier]


def _remove_imports(model: ir.Model) -> None:
    """Remove the imports of domains that no node is of; that of the standard ops stays."""
    used = {node.domain for node in _nodes([model.graph, *(function.graph for function in model.functions.values())])}
    for domain in set(model.opset_imports) - used - {""}:
        del model.opset_imports[domain]


def _nodes(graphs: Iterable[ir.Graph]) -> Iterable[ir.Node]:
    """All nodes of graphs and of those nested in them."""
    return (node for graph in graphs for below in scope.below(graph) for node in below)
