"""Weights as a loaded model holds them: what depends on constants alone is computed once, when a runtime loads it."""

from __future__ import annotations

import math

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.semantics import DEQUANTIZERS, constant_tensor, is_pure, is_random
from ortopt.semantics.nodes import key, subgraphs


def loaded_bytes(model: ir.Model, token: CancellationToken = NEVER) -> int:
    """Bytes of the constants of a model that its nodes read when it runs, computed ones included.

    What is dequantized stays quantized, and what has a size that is not known counts as what it is computed of.

    Args:
        model: The model.
        token: Cancellation token.
    """
    computed: dict[ir.Value, int] = {}
    read: dict[ir.Value, int] = {}
    for graph in scope.graphs(model, token):  # those of nodes come after the graphs that these are in
        for node in token.checked(graph):
            if node.op_type == "Constant" and not node.domain:
                continue
            inputs = {value for value in node.inputs if value is not None}
            known = {value: size for value in inputs if (size := _size(value, computed)) is not None}
            made = _made(node) if len(known) == len(inputs) else None
            if made is None:
                read |= known
            else:
                computed |= made
        read |= {value: size for value in graph.outputs if (size := _size(value, computed)) is not None}
    return sum(read.values())


def _size(value: ir.Value, computed: dict[ir.Value, int]) -> int | None:
    """The bytes of a constant or of what was computed of constants; None of others."""
    tensor = constant_tensor(value)
    return tensor.nbytes if tensor is not None else computed.get(value)


def _made(node: ir.Node) -> dict[ir.Value, int] | None:
    """The bytes of what a node computes; None where it runs again each time, or the sizes are not known."""
    stays = key(node) in DEQUANTIZERS or bool([*subgraphs(node)]) or not is_pure(node) or is_random(node)
    if stays or not node.inputs:
        return None
    sizes = {}
    for value in node.outputs:
        dims = None if value.shape is None else value.shape.dims
        if dims is None or not all(isinstance(dim, int) for dim in dims):
            return None
        if value.dtype is None or value.dtype == ir.DataType.STRING:
            return None
        sizes[value] = math.ceil(value.dtype.itemsize * math.prod(dim for dim in dims if isinstance(dim, int)))
    return sizes
