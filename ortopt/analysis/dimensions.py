"""Give symbolic input dimensions a value: ONNX Runtime's free-dimension overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ortopt.errors import UsageError
from ortopt.graph import scope, symbolic


def override(model: ir.Model, dims: Mapping[str, int]) -> None:
    """Fix symbolic dimensions of a model's inputs, and wherever their names appear.

    Args:
        model: The model; changed in place.
        dims: Value by name of a dimension, or by denotation (e.g. ``DATA_BATCH``).

    Raises:
        UsageError: If a name is unknown, a value is negative, or a name and a denotation disagree.
    """
    chosen, used = _sizes_of_inputs(model.graph.inputs, dims)
    symbols = {
        name
        for value in model.graph.inputs
        if value.shape is not None
        for dim in value.shape.dims
        if not isinstance(dim, int)
        for name in symbolic.symbols(dim)
    }
    for name, size in dims.items():
        if not 0 <= size < 1 << 63:
            raise UsageError(f"the dimension {name} cannot be {size}")
        if name in symbols:
            chosen[name] = size
        elif name not in used:
            known = ", ".join(sorted(symbols)) or "none"
            raise UsageError(f"no input has a dimension named {name}; the names: {known}")
    for graph in scope.below(model.graph):
        for value in (*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs)):
            _substitute(value, chosen)


def _sizes_of_inputs(inputs: Iterable[ir.Value], dims: Mapping[str, int]) -> tuple[dict[str, int], set[str]]:
    """The sizes of the inputs' named dimensions, by name, and which of `dims` are used; others get theirs in place."""
    chosen: dict[str, int] = {}
    used: set[str] = set()
    for value in inputs:
        if value.shape is None:
            continue
        for position, dim in enumerate(value.shape.dims):
            denotation = value.shape.get_denotation(position)
            name = None if isinstance(dim, int) else dim.value
            wanted = {key: dims[key] for key in (name, denotation) if key is not None and key in dims}
            used.update(wanted)
            if not wanted:
                continue
            if len(set(wanted.values())) > 1:
                raise UsageError(f"dimension {position} of {value.name}: {name} and {denotation} ask for two values")
            size = next(iter(wanted.values()))
            if isinstance(dim, int):
                if dim != size:
                    raise UsageError(f"dimension {position} of {value.name} is {dim}, not {size}")
            elif name is not None:
                if chosen.setdefault(name, size) != size:
                    raise UsageError(f"the dimension {name} cannot be both {chosen[name]} and {size}")
            else:
                value.shape = _with_dim(value.shape, position, size)
    return chosen, used


def _substitute(value: ir.Value, chosen: Mapping[str, int]) -> None:
    if value.shape is None or value.shape.is_static():
        return
    dims = [dim if isinstance(dim, int) else symbolic.substitute(dim, chosen) for dim in value.shape.dims]
    if dims != list(value.shape.dims):
        denotations = [value.shape.get_denotation(position) for position in range(len(dims))]
        value.shape = ir.Shape(dims, denotations=denotations)


def _with_dim(shape: ir.Shape, position: int, size: int) -> ir.Shape:
    dims = list(shape.dims)
    dims[position] = size
    return ir.Shape(dims, denotations=[shape.get_denotation(index) for index in range(len(dims))])
