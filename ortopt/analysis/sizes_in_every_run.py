"""The sizes of tensors that a model computes whenever it runs: they bound the symbols of its inputs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.facts import Dims, dims_of
from ortopt.graph.integer_ranges import extent
from ortopt.graph.symbolic import is_known, is_of_inputs, symbols
from ortopt.semantics import subgraphs
from ortopt.semantics.op_traits import RESHAPING


def sizes_in_every_run(graph: ir.Graph) -> Iterator[Dims]:
    """The extents of the tensors that a main graph computes for its outputs, where numbers stand beside symbols.

    Args:
        graph: The main graph.
    """
    read: set[ir.Value | None] = set(graph.outputs)
    for node in reversed(graph):
        if read.isdisjoint(node.outputs):
            continue
        read.update(node.inputs)
        if any(subgraphs(node)):
            read.update(scope.captured(node))
        for value in node.outputs:
            dims = _elements(value) or _square(value) if isinstance(value.type, ir.TensorType) else None
            if dims is not None and any(symbols(dim) for dim in dims):
                yield extent(dims, value.dtype)


def _elements(value: ir.Value) -> Dims | None:
    """Sizes that multiply to the number of a value's elements: its own, or of what it was reshaped or looked up from.

    So ``Gather(table, Reshape(ids))`` has as many elements as ids times the row of the table, whatever its shape is.
    """
    more: Dims = ()
    while True:
        dims = dims_of(value)
        if dims is not None and all(is_known(dim) and all(map(is_of_inputs, symbols(dim))) for dim in dims):
            return (*dims, *more)
        node = value.producer()
        first, *others = (None,) if node is None or node.domain or not node.inputs else node.inputs
        if node is None or first is None:
            return None
        if node.op_type in RESHAPING or node.op_type in ("Cast", "Identity"):
            value = first
            continue
        table = dims_of(first) if node.op_type == "Gather" else None
        axis = node.attributes.get("axis")
        rows = table is not None and all(isinstance(dim, int) for dim in table[1:])
        if table is None or not rows or others[0] is None or (axis is not None and axis.value != 0):
            return None
        value, more = others[0], (*table[1:], *more)


def _square(value: ir.Value) -> Dims | None:
    """The dimensions of a value if one of them is there twice, be it invented; None for others."""
    dims = [dim for dim in dims_of(value) or () if not isinstance(dim, int)]
    return dims_of(value) if len(set(map(str, dims))) < len(dims) and all(map(is_known, dims)) else None
