"""What is left of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

BLOCKED = "com.microsoft.nchwc"
REORDERS = ("ReorderInput", "ReorderOutput")
STANDARD = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training")


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of a model with all its subgraphs and functions, Constants left out.

    Attributes:
        total: How many.
        fused: How many of them are of no standard domain: what ONNX Runtime fuses to, reorders included.
        reorders: How many of them only change the layout, to ONNX Runtime's blocked one or back.
    """

    total: int
    fused: int
    reorders: int = 0


def count(path: Path) -> Nodes:
    """Count the nodes of a file; its external data is not read."""
    import onnx

    model = onnx.load_model(path, load_external_data=False)
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    local = {function.domain for function in model.functions}
    nodes = [node for body in bodies for node in _walk(body) if node.op_type != "Constant"]
    return Nodes(
        len(nodes),
        sum(node.domain not in (*STANDARD, *local) for node in nodes),
        sum(node.domain == BLOCKED and node.op_type in REORDERS for node in nodes),
    )


def _walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _walk(attribute.g.node)
            for graph in attribute.graphs:
                yield from _walk(graph.node)
