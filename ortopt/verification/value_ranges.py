"""A copy of a model that gives the largest magnitude of each of some values beside its outputs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.serialization.load import load

PREFIX: Final = "ortopt.range:"
"""What the names of such outputs begin with; the value's name follows."""


def with_ranges(model: ir.Model, names: Collection[str], token: CancellationToken = NEVER) -> ir.Model:
    """The copy.

    Args:
        model: The model; it is not changed.
        names: Names of values of its main graph; all of them are tensors of floats.
        token: Cancellation token.
    """
    copy = load(model, token, checked=False)
    graph = copy.graph
    for value in [value for node in graph for value in node.outputs if value.name in names]:
        size = ir.node("Abs", [value])
        largest = ir.node("ReduceMax", [size.outputs[0]], {"keepdims": 0})
        size.outputs[0].name, largest.outputs[0].name = f"{PREFIX}{value.name}:abs", f"{PREFIX}{value.name}"
        largest.outputs[0].type, largest.outputs[0].shape = value.type, ir.Shape([])
        graph.extend([size, largest])
        graph.outputs.append(largest.outputs[0])
    return copy


__all__ = ["PREFIX", "with_ranges"]
