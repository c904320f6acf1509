"""Detection of edits past the editor: they can be neither rolled back nor tracked, and must be declared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.framework.workspace import Misuse
from ortopt.graph import scope
from ortopt.graph.edit import Editor
from ortopt.onnx_ir_internals import attributes_of, initializers_of
from ortopt.transformer import GraphTransformer

REMEDY = "edit through the context (substitute, attempt, edit), or declare bypasses_editor = True"


class DirectEdit(Misuse):
    """A transformer without ``bypasses_editor`` has changed a graph past the editor: it cannot be taken back."""


def is_own(transformer: GraphTransformer) -> bool:
    """Whether a transformer is one of ortopt's own: tests check that these edit through the context alone."""
    return type(transformer).__module__.partition(".")[0] == __name__.partition(".")[0]


def described(error: Exception) -> str:
    """What was raised, in words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def check_edits(edit: Editor, graph: ir.Graph, *, returned: object, logged: bool) -> None:
    """Refuse what a transformer that has returned has done to a graph past the editor, as far as a glance shows it.

    A glance shows nodes that were added or removed, and, where nothing was edited through the editor, that True was
    returned. A `Guard` sees the rest.

    Args:
        edit: The editor of the model.
        graph: The graph that `apply` was called with.
        returned: What `apply` returned.
        logged: Whether the editor has recorded any change.

    Raises:
        DirectEdit: With what is wrong, and what to do about it.
    """
    index = edit.index
    if graph in index and len(graph) != index.size(graph):
        raise DirectEdit(f"it put nodes into the graph, or took some out, past the editor: {REMEDY}")
    if returned and not logged:
        raise DirectEdit(f"it returned True, and the editor has recorded no change: {REMEDY}")


@contextmanager
def read_only_constants(model: ir.Model, token: CancellationToken = NEVER) -> Iterator[None]:
    """For as long as this lasts, nobody writes into the arrays of a model's constants, which clones of it share.

    numpy raises then. Constants that are read from a file are never writable.

    Args:
        model: The model.
        token: Cancellation token.
    """
    frozen: list[np.ndarray] = []
    try:
        for graph in scope.graphs(model, token):
            for array in _arrays(graph):
                if array.flags.writeable:
                    array.setflags(write=False)
                    frozen.append(array)
        yield
    finally:
        for array in sorted(frozen, key=lambda array: isinstance(array.base, np.ndarray)):  # views after what they show
            with suppress(ValueError):  # memory of ONNX Runtime's that holds a folded constant: numpy does not trust it
                array.setflags(write=True)


def _arrays(graph: ir.Graph | ir.Function) -> Iterator[np.ndarray]:
    tensors = [value.const_value for value in graph.initializers.values()] if isinstance(graph, ir.Graph) else []
    for node in graph:
        for attribute in attributes_of(node).values():
            if attribute.type is ir.AttributeType.TENSOR:
                tensors.append(attribute.value)
            elif attribute.type is ir.AttributeType.TENSORS:
                tensors += attribute.value
    for tensor in tensors:
        if isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.ndarray):
            yield tensor.raw


class _Value(Struct, frozen=True):
    """What a value was."""

    value: ir.Value
    name: str | None
    kind: tuple[Any, ...]


class _Model(Struct, frozen=True):
    """What a model was beside its graphs."""

    graph: ir.Graph
    ir_version: int | None
    functions: dict[Any, ir.Function]
    imports: list[tuple[dict[str, int], dict[str, int]]]


class _Graph(Struct, frozen=True):
    """What a graph was: its nodes, by column; its values, its interface and its constants."""

    nodes: tuple[ir.Node, ...]
    ops: list[tuple[str, str, str]]
    operands: list[Any]
    results: list[Any]
    attributes: list[Any]
    values: list[_Value]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    constants: list[Any]


class Guard:
    """Watches over transformers that are not ortopt's own while they run on the graphs of a model.

    Before the first of them runs, it writes down what the model is: that is linear in the nodes, and costs nothing
    where only ortopt's own transformers run.

    Args:
        edit: The editor of the model.
    """

    def __init__(self, edit: Editor) -> None:
        self._edit = edit
        self._suspects: dict[GraphTransformer, None] = {}
        self._version = 0
        self._graphs: dict[ir.Graph, _Graph] | None = None
        self._model: _Model | None = None
        self._was_as_indexed = True

    def begin(self, strangers: Sequence[GraphTransformer], token: CancellationToken = NEVER) -> None:
        """Say which transformers are about to run that are not ortopt's own.

        Args:
            strangers: The transformers.
            token: Cancellation token.
        """
        self._suspects.update(dict.fromkeys(strangers))
        if strangers and self._graphs is None:
            self._version = self._edit.version
            self._was_as_indexed = self._is_as_indexed()  # who comes later is not to blame for what was before
            self._model = _model_snapshot(self._edit.model)
            self._graphs = {g: _snapshot(g, tuple(g)) for g in token.checked(self._edit.index.graphs())}

    def shows_direct_edits(self) -> bool:
        """Whether anything is another now that the result may depend on, although no edit of the editor was about it.

        Nodes, graphs, functions, constants, types and shapes, names of values, and opsets are looked at; names of nodes
        and metadata are not.
        """
        if self._graphs is None or self._model is None:
            return False
        if self._was_as_indexed and not self._is_as_indexed():
            return True
        edited, renamed = self._edit.concerned(self._version), self._edit.renamed(self._version)
        index = self._edit.index
        if _model_differs(self._model, self._edit.model, edited):
            return True
        return any(_differs(was, graph, edited, renamed) for graph, was in self._graphs.items() if graph in index)

    def is_restored(self) -> bool:
        """Whether the model is what it was, once all that the editor has recorded has been taken back."""
        try:
            return not self.shows_direct_edits() if self._graphs is not None else self._is_as_indexed()
        except Exception:  # whatever a broken graph answers
            return False

    def _is_as_indexed(self) -> bool:
        index = self._edit.index
        return all(map(index.holds_exactly, index.graphs()))

    def blamed(
        self, culprit: GraphTransformer | None = None, cause: Exception | None = None
    ) -> tuple[GraphTransformer, Exception]:
        """Who has edited past the editor, and what is said about it.

        Args:
            culprit: The transformer that raised, if one has; one of ortopt's own may have stumbled over the edits.
            cause: What it raised.
        """
        suspects = tuple(self._suspects)
        if not suspects:
            assert culprit is not None
            assert cause is not None
            return culprit, cause
        who = culprit if culprit in suspects else suspects[0]
        assert who is not None
        raised = "" if cause is None or who is not culprit else f"it raised {described(cause)}, and "
        what = "it" if len(suspects) == 1 or raised else f"one of {', '.join(t.name for t in suspects)}"
        error = DirectEdit(f"{raised}{what} changed nodes of the graph past the editor: {REMEDY}")
        error.__cause__ = cause
        return who, error


def _snapshot(graph: ir.Graph, nodes: tuple[ir.Node, ...]) -> _Graph:
    constants = initializers_of(graph)
    return _Graph(
        nodes,
        [node.op_identifier() for node in nodes],
        [node.inputs for node in nodes],
        [node.outputs for node in nodes],
        [tuple(attributes.values()) if (attributes := attributes_of(node)) else () for node in nodes],
        [_Value(value, value.name, _kind(value)) for value in _values(graph, nodes)],
        tuple(graph.inputs),
        tuple(graph.outputs),
        [(name, value, value.const_value) for name, value in constants.items()],
    )


def _differs(was: _Graph, graph: ir.Graph, edited: frozenset[int], renamed: frozenset[int]) -> bool:
    """Whether something about a graph is different that was not edited."""
    if id(graph) not in edited and was.nodes != tuple(graph):
        return True
    now = _snapshot(graph, was.nodes)
    wholes = (
        (was.inputs, now.inputs, graph.inputs),
        (was.outputs, now.outputs, graph.outputs),
        (was.constants, now.constants, graph.initializers),
    )
    if any(had != has and id(holder) not in edited for had, has, holder in wholes):
        return True
    columns = (
        (was.ops, now.ops),
        (was.operands, now.operands),
        (was.results, now.results),
        (was.attributes, now.attributes),
    )
    if any(
        one != other and id(node) not in edited
        for had, has in columns
        if had != has
        for node, one, other in zip(was.nodes, had, has, strict=True)
    ):
        return True
    return any(
        (had.name != had.value.name and id(had.value) not in renamed)
        or (had.kind != _kind(had.value) and id(had.value) not in edited)
        for had in was.values
    )


def _values(graph: ir.Graph, nodes: tuple[ir.Node, ...]) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from initializers_of(graph).values()
    for node in nodes:
        yield from node.outputs


def _kind(value: ir.Value) -> tuple[Any, ...]:
    """What is known of a value; the element type by itself, as a type can be changed in place."""
    return value.type, value.dtype, value.shape


def _model_snapshot(model: ir.Model) -> _Model:
    imports = [model.opset_imports, *(function.opset_imports for function in model.functions.values())]
    return _Model(model.graph, model.ir_version, dict(model.functions), [(held, dict(held)) for held in imports])


def _model_differs(was: _Model, model: ir.Model, edited: frozenset[int]) -> bool:
    """Whether something about a model is different that was not edited."""
    if was.graph is not model.graph or (was.ir_version != model.ir_version and id(model) not in edited):
        return True
    if was.functions != dict(model.functions) and id(model.functions) not in edited:
        return True
    return any(held != had and id(held) not in edited for held, had in was.imports)
