"""Questions about models as protobuf messages, asked by several parts of the fuzzer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper


def subgraphs(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """The graphs that nodes hold; not those within them."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all graphs nested in it."""
    pending = [graph]
    while pending:
        each = pending.pop()
        yield each
        pending.extend(subgraphs(each.node))


def nodes_of(model: ModelProto) -> Iterator[NodeProto]:
    """All nodes of a model, those of subgraphs and functions included."""
    for graph in graphs_of(model.graph):
        yield from graph.node
    for function in model.functions:
        yield from function.node
        for inner in subgraphs(function.node):
            for graph in graphs_of(inner):
                yield from graph.node


def reads(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """The names that nodes read, those inside their graphs included; what is read twice comes twice."""
    for node in nodes:
        yield from filter(None, node.input)
        for held in subgraphs([node]):
            for graph in graphs_of(held):
                yield from (one.name for one in graph.output)
                for inner in graph.node:
                    yield from filter(None, inner.input)


def watched(model: ModelProto) -> ModelProto:
    """A copy whose outputs are all values of the main graph."""
    twin = ModelProto()
    twin.CopyFrom(model)
    told = {one.name for one in twin.graph.output}
    names = [name for node in twin.graph.node for name in node.output if name and name not in told]
    twin.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return twin


def kind_of(array: np.ndarray[Any, Any]) -> int:
    """The element type of an array; of objects it is text."""
    return TensorProto.STRING if array.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(array.dtype)
