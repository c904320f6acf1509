"""Which intermediate values of two models are the same ones: by their names, and by what is recorded of new nodes.

A run gives a new value the name of the one that it stands for, and records it (`ortopt.graph.provenance`). So of a
result whose nodes carry the record, in memory or by ``--provenance``, only what is recorded counts: a node that is new
and stands for no value of the original has no counterpart, whatever its results are called. Of other models names
count, where type and shape do not say otherwise: those of values, else those of nodes of one op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.facts import dims_of
from ortopt.graph.provenance import Record, record_of, values_of
from ortopt.instrumentation.graph_snapshot import op_of
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.verification.runner import Source

MAX_NAMED: Final = 8
"""How many values are named where there may be many."""


class Pair(Struct, frozen=True):
    """A value of the original and its counterpart.

    Attributes:
        original: The original's value.
        result: The result's.
        by: ``origin`` where the result's node records it; ``name`` where value or node have the same name.
        record: What is recorded of the result's node, or None.
    """

    original: ir.Value
    result: ir.Value
    by: Literal["name", "origin"]
    record: Record | None


class Joining(Struct, frozen=True):
    """Two models, loaded and inferred, and the values of them that are the same ones.

    Attributes:
        original: The original.
        result: The result.
        pairs: The values that can be compared, in the order of the original's graph.
        original_values: How many tensors the original's main graph computes, constants left out.
        result_values: How many that of the result computes.
        nested: How many values the original computes in subgraphs and functions.
        unlike: Names that both have, of values that are of another type or shape.
    """

    original: ir.Model
    result: ir.Model
    pairs: tuple[Pair, ...]
    original_values: int
    result_values: int
    nested: int
    unlike: tuple[str, ...]


def join(original: Source, result: Source, token: CancellationToken = NEVER) -> Joining:
    """Find the values of two models that are the same ones.

    Args:
        original: A path or a model.
        result: A path or a model.
        token: Cancellation token.

    Raises:
        InvalidModelError: A path holds no model.
    """
    models = [_inferred(source, token) for source in (original, result)]
    values = [list(computed(model.graph)) for model in models]
    joiner = _Joiner(values[0], values[1])
    nested = sum(
        len(node.outputs) for graph in scope.graphs(models[0], token) if graph is not models[0].graph for node in graph
    )
    pairs = joiner.pairs()
    return Joining(models[0], models[1], pairs, len(values[0]), len(values[1]), nested, tuple(joiner.unlike))


def _inferred(source: Source, token: CancellationToken) -> ir.Model:
    model = load(source, token, checked=False)
    scope.attach(model, Options(), token)
    infer_model(model, token)
    return model


def computed(graph: ir.Graph) -> Iterator[ir.Value]:
    """The tensors that the nodes of a graph compute, in order; not what a Constant holds."""
    for node in graph:
        if node.op_type != "Constant" or node.domain:
            yield from (value for value in node.outputs if value.name and isinstance(value.type, ir.TensorType))


class _Joiner:
    """Joins the values of two graphs, each with one other at most."""

    def __init__(self, original: Iterable[ir.Value], result: Iterable[ir.Value]) -> None:
        self._original = {value.name or "": value for value in original}
        self._result = list(result)
        self._places = {value: at for at, value in enumerate(self._original.values())}
        self._found: dict[ir.Value, Pair] = {}
        self._taken: set[ir.Value] = set()
        self.unlike: dict[str, None] = {}

    def pairs(self) -> tuple[Pair, ...]:
        """All pairs, in the order of the original."""
        records: dict[ir.Node | None, Record | None] = {}
        for value in self._result:
            node = value.producer()
            if node is not None and node not in records:
                records[node] = record_of(node)
        is_recorded = any(any(record.values) for record in records.values() if record is not None)
        for value in self._result:
            record = records[value.producer()]
            self._join_by_names(value, record if is_recorded else None)
        self._join_by_nodes()
        return tuple(sorted(self._found.values(), key=lambda pair: self._places[pair.original]))

    def _join_by_names(self, value: ir.Value, record: Record | None) -> None:
        if record is None or value.is_graph_output():  # the interface keeps its names
            names: tuple[str, ...] = (value.name or "", *values_of(value))
        else:
            names = record.values[value.index() or 0]
        for name in names:
            if name in self._original and self._original[name] not in self._found:
                other = self._original[name]
                if self._add(other, value, record):
                    return

    def _add(self, original: ir.Value, result: ir.Value, record: Record | None) -> bool:
        """Join two values, unless they are of other types or shapes where only the name says that they are one."""
        if record is None and not result.is_graph_output() and not _are_alike(original, result):
            self.unlike[original.name or ""] = None
            return False
        self._found[original] = Pair(original, result, "name" if record is None else "origin", record)
        self._taken.add(result)
        return True

    def _join_by_nodes(self) -> None:
        """Join what is left of nodes of one name and one op that are nobody's: their values have been renamed."""
        left = [value for value in self._original.values() if value not in self._found]
        known: dict[tuple[str, str, int | None, int], ir.Value] = {}
        for value in left:
            if (key := _node_key(value)) is not None:
                known[key] = value
        for value in self._result:
            node, key = value.producer(), _node_key(value)
            if value in self._taken or key is None or node is None or record_of(node) is not None:
                continue
            other = known.pop(key, None)
            if other is not None and (value.name or "") not in self._original:
                self._add(other, value, None)


def _node_key(value: ir.Value) -> tuple[str, str, int | None, int] | None:
    """What values of nodes of one name have in common; None where the node has no name."""
    node = value.producer()
    return None if node is None or not node.name else (node.name, op_of(node), value.index(), len(node.outputs))


def _are_alike(first: ir.Value, second: ir.Value) -> bool:
    """Whether two values may be one: both of floats or of one type, and of shapes that do not exclude each other."""
    types = first.dtype, second.dtype
    if types[0] != types[1] and not all(dtype is not None and dtype.is_floating_point() for dtype in types):
        return False
    own, other = dims_of(first), dims_of(second)
    if own is None or other is None:
        return True
    return len(own) == len(other) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in zip(own, other, strict=True)
    )
