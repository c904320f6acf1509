"""Moves carried out on arrays: what an array has for each place along the last dimensions of a value, moves with it.

For moves that no affine map describes, as rolls, permutations of lanes, or parts of several values: of dimensions that
are numbers. The dimensions in front of them may be anything, and stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import Refusal, dims, inputs, integers, need, need_fixed, same_dim, small_array
from ortopt.ops.moves import taken

Array: TypeAlias = "npt.NDArray[Any]"

MOVES: Final = frozenset(
    {"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose"}
    | {"Unsqueeze"}
)
"""The ops that are carried out."""


def operands(node: ir.Node, result: ir.Value, rank: int) -> list[tuple[ir.Value, int]]:
    """What a move reads to give the last dimensions of a result: values, and how many of their last dimensions.

    Args:
        node: The move.
        result: Its result.
        rank: How many of the last dimensions; the result may have fewer, then those in front are 1.

    Raises:
        Refusal: If it also moves along other dimensions.
    """
    within = rank
    if node.op_type == "Gather":
        within = rank + 1 - small_array(inputs(node, 2)[1]).ndim
    elif node.op_type in ("Reshape", "Flatten"):
        before, after = dims(inputs(node, 1)[0]), dims(result)
        around = max(len(after) - rank, 0)
        within = _inner(len(before) - around, node)
        need(all(map(same_dim, before[:around], after[:around])), "it reshapes outer dimensions", node)
    elif node.op_type == "Unsqueeze":
        within = rank - len(ops.Unsqueeze(node).axes)
    elif node.op_type == "Squeeze":
        within = rank + len(ops.Squeeze(node).axes)
    return [(value, within) for value in inputs(node, len(node.inputs) if node.op_type == "Concat" else 1)]


def moved(node: ir.Node, result: ir.Value, rank: int, arrays: Sequence[Array]) -> Array:
    """The array of the last dimensions of a result.

    Args:
        node: The move.
        result: Its result.
        rank: How many of the last dimensions.
        arrays: The arrays of its operands, as `operands` lists them; all may have more axes in front.

    Raises:
        Refusal: If it also moves along other dimensions, or the sizes are not known, or do not fit.
    """
    try:
        return _moved(node, result, rank, arrays)
    except (IndexError, ValueError) as error:  # in a model that does not run
        raise Refusal("the dimensions do not fit", node) from error


def _moved(node: ir.Node, result: ir.Value, rank: int, arrays: Sequence[Array]) -> Array:
    array, around = arrays[0], len(dims(result)) - rank
    ((source, within), *_) = operands(node, result, rank)
    lead = array.ndim - within
    match node.op_type:
        case "Concat":
            return np.concatenate(arrays, axis=lead + _inner(ops.Concat(node).axis - around, node))
        case "Split":
            axis = ops.Split(node).axis
            sizes = [_size(part, axis) for part in node.outputs]
            start = sum(sizes[: list(node.outputs).index(result)])
            return array.take(range(start, start + _size(result, axis)), axis=lead + _inner(axis - around, node))
        case "Slice":
            for axis, *bounds in ops.Slice(node).cuts:
                numbers = [bound for bound in bounds if isinstance(bound, int)]
                need(len(numbers) == len(bounds) and numbers[-1] != 0, "a bound is not known", node)
                at = lead + _inner(axis - around, node)
                array = array.take(taken(array.shape[at], *numbers), axis=at)
            return array
        case "Gather":
            chosen = small_array(inputs(node, 2)[1])
            at = lead + _inner(ops.Gather(node).axis - (len(dims(source)) - within), node)
            count = array.shape[at]
            need(bool(((chosen >= -count) & (chosen < count)).all()), "an index is out of range", node)
            return array.take(chosen, axis=at)
        case "Transpose":
            perm = ops.Transpose(node).order
            need(perm[: _inner(around, node)] == tuple(range(around)), "it moves outer dimensions", node)
            return array.transpose(*range(lead), *(lead + place - around for place in perm[around:]))
        case "Unsqueeze":
            return np.expand_dims(array, [lead + _inner(axis - around, node) for axis in ops.Unsqueeze(node).axes])
        case "Squeeze":
            return np.squeeze(array, tuple(lead + _inner(axis - around, node) for axis in ops.Squeeze(node).axes))
        case "Tile":
            times = integers(inputs(node, 2)[1])
            need(all(time == 1 for time in times[:around]), "it repeats along outer dimensions", node)
            return np.tile(array, times[around:])
        case "Reshape" | "Flatten":
            return array.reshape(*array.shape[:lead], *_sizes(result, rank))
        case "Expand":
            return np.broadcast_to(array, (*array.shape[:lead], *_sizes(result, rank)))
    return array


def _inner(place: int, node: ir.Node) -> int:
    """A place among the last dimensions, which is one."""
    if place < 0:
        raise Refusal("it moves along outer dimensions", node)
    return place


def _sizes(value: ir.Value, rank: int) -> tuple[int, ...]:
    shape = dims(value)
    return tuple(_size(value, place) if place >= 0 else 1 for place in range(len(shape) - rank, len(shape)))


def _size(value: ir.Value, place: int) -> int:
    return need_fixed((dims(value)[place],), "a size is not known", value)[0]
