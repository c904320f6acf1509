"""The layer that each kernel of a profile stands in: of a node of the file, or of one that ONNX Runtime has made."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.provenance import record_of
from ortopt.instrumentation.module_paths import paths_of_nodes
from ortopt.verification.layer_rows import layer_of


def layers_by_node(model: ir.Model, loaded: ir.Model | None) -> dict[str, str]:
    """The layers of nodes by their names; empty texts for those that stand in none.

    A node that ONNX Runtime has made when it loaded the file stands where that node stood whose result it computes.

    Args:
        model: The model in the file.
        loaded: What ONNX Runtime has made of it; None where that is not known.
    """
    found: dict[str, str] = {}
    by_value: dict[str, str] = {}
    for node, layer in _layers(model):
        if node.name:
            found.setdefault(node.name, layer)
        by_value.update((value.name, layer) for value in node.outputs if value.name)
    for node, layer in () if loaded is None else _layers(loaded):
        if node.name and node.name not in found:
            told = (by_value[value.name] for value in node.outputs if value.name in by_value)
            found[node.name] = next(told, layer)
    return found


def _layers(model: ir.Model) -> list[tuple[ir.Node, str]]:
    """All nodes with their layers."""
    return [(node, _layer_of_origins(node) or layer_of(path)) for node, path in paths_of_nodes(model).items()]


def _layer_of_origins(node: ir.Node) -> str:
    """The layer of the nodes that a node was made from, where that is recorded and it is one; else empty."""
    record = record_of(node)
    origins = () if record is None else record.origins
    layers = {layer_of([part for part in name.split("/")[:-1] if part]) for name in origins}
    return layers.pop() if len(layers) == 1 else ""
