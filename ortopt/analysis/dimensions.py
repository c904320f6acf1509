"""Give dimensions of a model's inputs sizes: ONNX Runtime's free-dimension overrides, and other fixed sizes."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

import onnx_ir as ir

from ortopt.errors import UsageError
from ortopt.graph import scope, symbolic
from ortopt.graph.symbolic import Dim
from ortopt.terminal_text import quoted

Shapes = Mapping[str, Sequence[int | None]]
"""Shapes by the names of inputs; None is a size that stays as it is."""


def override(model: ir.Model, dims: Mapping[str, int], shapes: Shapes | None = None) -> frozenset[str]:
    """Fix dimensions of a model's inputs, and symbols wherever they appear.

    Where a fixed size changes, what the model declares of the shapes of computed values is dropped: it was said of the
    old size.

    Args:
        model: The model; changed in place.
        dims: Value by name of a dimension, or by denotation (e.g. ``DATA_BATCH``).
        shapes: Shapes of inputs. They also change sizes that are fixed.

    Returns:
        The inputs of which a fixed size has changed.

    Raises:
        UsageError: If a name is unknown, a value is negative, or two of them disagree.
    """
    chosen, used = _sizes_of_inputs(model.graph.inputs, dims)
    symbols = _symbols(model.graph.inputs)
    for name, size in dims.items():
        if not 0 <= size < 1 << 63:
            raise UsageError(f"the dimension {name} cannot be {size}")
        if name in symbols:
            chosen[name] = size
        elif name not in used:
            raise UsageError(_no_such_dimension(name, symbols))
    given = {_input(model.graph.inputs, name): tuple(shape) for name, shape in (shapes or {}).items()}
    for value, shape in given.items():
        _choose(value, shape, chosen)
    declared = {value: value.shape for value in given}
    _substitute_all(model, chosen)
    changed = frozenset(value.name or "" for value, shape in given.items() if _put(value, shape, declared[value]))
    if changed:
        forget_computed_shapes(model)
    return changed


def rename(model: ir.Model, names: Mapping[str, str]) -> None:
    """Give dimensions of a model's inputs other names, wherever they appear; several may get the same.

    Args:
        model: The model; changed in place.
        names: New names by old ones.

    Raises:
        UsageError: If no input has a dimension of a name.
    """
    check_names(model, names)
    _substitute_all(model, {old: symbolic.symbol(new) for old, new in names.items()})


def _substitute_all(model: ir.Model, chosen: Mapping[str, Dim]) -> None:
    for graph in scope.below(model.graph):
        for value in (*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs)):
            _substitute(value, chosen)


def sizes_of_symbols(model: ir.Model, dims: Mapping[str, int], shapes: Shapes) -> dict[str, int]:
    """The sizes that `override` gives symbols, and those of denotations; the model is not changed."""
    chosen = dict(dims)
    for name, shape in shapes.items():
        _choose(_input(model.graph.inputs, name), tuple(shape), chosen)
    return chosen


def is_symbol(dim: Dim) -> str | None:
    """The name of the symbol that a dimension is; None for numbers, expressions, and what has no name."""
    names = symbolic.symbols(dim)
    if isinstance(dim, int) or len(names) != 1:
        return None
    (name,) = names
    return name if symbolic.substitute(dim, {name: 7}) == 7 else None


def dimension_names(value_name: str, axis: int, dim: Dim) -> list[str]:
    """The names by which an input's dimension is given a size: its symbols, or ``x[2]`` where it has no name.

    Args:
        value_name: The input's name.
        axis: The dimension's axis.
        dim: The dimension.
    """
    if isinstance(dim, int) or dim.value is not None:
        return sorted(symbolic.symbols(dim))
    return [f"{value_name}[{axis}]"]


def summands(name: str, names: list[str]) -> list[str]:
    """The symbols whose sum an attention mask's length is, in the names that exporters give."""
    parts = name.split("_plus_") if "_plus_" in name else []
    if not parts and ("total" in name or "cache" in name):
        parts = [
            next((other for other in names if other != name and word in other and "total" not in other), "")
            for word in ("past", "seq")
        ]
    return parts if parts and all(part in names and part != name for part in parts) else []


def check_names(model: ir.Model, names: Iterable[str]) -> None:
    """Check that a model's inputs have symbolic dimensions of some names.

    Args:
        model: The model.
        names: The names.

    Raises:
        UsageError: If one is unknown, with those that there are.
    """
    symbols = _symbols(model.graph.inputs)
    for name in names:
        if name not in symbols:
            raise UsageError(_no_such_dimension(name, symbols))


def matching(model: ir.Model, patterns: Collection[str]) -> frozenset[str]:
    """The names of symbolic dimensions of a model's inputs that patterns name.

    Args:
        model: The model.
        patterns: Names, in which ``*`` stands for any text.
    """
    names = _symbols(model.graph.inputs) if patterns else ()
    return frozenset(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def _no_such_dimension(name: str, symbols: set[str]) -> str:
    known = ", ".join(sorted(symbols)) or "none"
    return f"no input has a dimension named {name}; the names: {known}"


def _symbols(inputs: Iterable[ir.Value]) -> set[str]:
    return {
        name
        for value in inputs
        if value.shape is not None
        for dim in value.shape.dims
        if not isinstance(dim, int)
        for name in symbolic.symbols(dim)
    }


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
                _set_dims(value, {position: size})
    return chosen, used


def _input(inputs: Sequence[ir.Value], name: str) -> ir.Value:
    """The input of a name."""
    by_name = {value.name or "": value for value in inputs}
    if name in by_name:
        return by_name[name]
    near = get_close_matches(name, by_name, 1)
    hint = f"did you mean {quoted(near[0])}?" if near else f"the inputs: {', '.join(map(quoted, by_name)) or 'none'}"
    raise UsageError(f"no input is named {quoted(name)}; {hint}")


def _choose(value: ir.Value, shape: tuple[int | None, ...], chosen: dict[str, int]) -> None:
    """Add the sizes that an input's shape gives its symbols to those that are chosen."""
    name = quoted(value.name)
    if not isinstance(value.type, ir.TensorType | None):
        raise UsageError(f"input {name} is no tensor: it has no shape")
    for size in shape:
        if size is not None and not 0 <= size < 1 << 63:
            raise UsageError(f"a dimension of input {name} cannot be {size}")
    if value.const_value is not None and any(
        size not in (None, own) for size, own in zip(shape, value.const_value.shape, strict=False)
    ):
        raise UsageError(f"input {name} has a default value of the shape {list(value.const_value.shape)}")
    if value.shape is None:
        return
    if len(value.shape) != len(shape):
        now = ", ".join("?" if not isinstance(dim, int) and dim.value is None else str(dim) for dim in value.shape.dims)
        raise UsageError(f"input {name} has {len(value.shape)} dimensions, [{now}], not {len(shape)}")
    for dim, size in zip(value.shape.dims, shape, strict=True):
        symbol = None if size is None else is_symbol(dim)
        if size is not None and symbol is not None and chosen.setdefault(symbol, size) != size:
            raise UsageError(f"the dimension {symbol} cannot be both {chosen[symbol]} and {size}")


def _put(value: ir.Value, shape: tuple[int | None, ...], declared: ir.Shape | None) -> bool:
    """Give an input, whose symbols have been replaced, a shape; whether a fixed size has changed.

    Args:
        value: The input.
        shape: Its sizes; None for those that stay.
        declared: Its shape before symbols were replaced.
    """
    if value.shape is None or declared is None:
        value.shape = ir.Shape(shape)
        return False
    now = value.shape.dims
    fixed = {axis: size for axis, size in enumerate(shape) if size is not None and now[axis] != size}
    for axis, size in fixed.items():
        if isinstance(now[axis], int) and not isinstance(declared[axis], int):
            expression = f"{declared[axis]} = {now[axis]}"
            raise UsageError(f"dimension {axis} of input {quoted(value.name)} is {expression}, not {size}")
    if fixed:
        _set_dims(value, fixed)
    return any(isinstance(declared[axis], int) for axis in fixed)


def _substitute(value: ir.Value, chosen: Mapping[str, Dim]) -> None:
    if value.shape is None or value.shape.is_static():
        return
    dims = [dim if isinstance(dim, int) else symbolic.substitute(dim, chosen) for dim in value.shape.dims]
    if dims != list(value.shape.dims):
        _set_dims(value, dict(enumerate(dims)))


def _set_dims(value: ir.Value, sizes: Mapping[int, Dim]) -> None:
    """Replace dimensions of a value's shape, by axis."""
    shape = value.shape
    assert shape is not None
    dims = [sizes.get(axis, dim) for axis, dim in enumerate(shape.dims)]
    value.shape = ir.Shape(dims, denotations=[shape.get_denotation(axis) for axis in range(len(dims))])


def forget_computed_shapes(model: ir.Model) -> None:
    """Drop what a model declares of the shapes of all values but its inputs and initializers."""
    kept = set(model.graph.inputs)
    for graph in scope.graphs(model):
        computed = (output for node in graph for output in node.outputs)
        for value in (*graph.inputs, *graph.outputs, *computed):
            if value not in kept and not value.is_initializer():
                value.shape = None
