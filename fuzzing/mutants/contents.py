"""Changes of constants: their numbers, their shapes, and how they are spelled."""

from __future__ import annotations

import copy
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

from fuzzing.mutants.draft import Draft, array_of, is_float, numpy_type, store
from fuzzing.writer import Array, Unsuitable

_NUMBERS: Final = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, np.nan, np.inf, -np.inf, 1e-40, 1e-7, -1e-7, 65504.0, 3e38)
_SMALL: Final = 16
"""Elements that a constant of sizes or axes has at most."""


def numbers(draft: Draft) -> None:
    """One element or all of a constant become a number that rewrites stumble over."""
    tensor = draft.one(draft.constants())
    array = array_of(tensor).copy()
    if not array.size:
        raise Unsuitable
    number = _number(draft, array)
    if draft.draw.random() < 0.4:
        array.reshape(-1)[:] = number
    else:
        array.reshape(-1)[draft.draw.randrange(array.size)] = number
    store(tensor, array)


def _number(draft: Draft, array: Array) -> Any:
    draw = draft.draw
    own = array.reshape(-1)[draw.randrange(array.size)]
    if array.dtype.kind == "b":
        return not own
    if array.dtype.kind in "iu":
        bounds = np.iinfo(array.dtype)
        nearby = (int(own) + 1, int(own) - 1, -int(own), 0, 1, -1, 2, bounds.min, bounds.max)
        number = draw.choice(nearby[:7] if draw.random() < 0.8 else nearby)
        return min(max(number, bounds.min), bounds.max)
    with np.errstate(all="ignore"):
        factors = (own * array.dtype.type(2), own * array.dtype.type(1.001), -own)
        return draw.choice(factors) if draw.random() < 0.4 else array.dtype.type(draw.choice(_NUMBERS))


def integers(draft: Draft) -> None:
    """A list of integers, as axes and sizes are, gets one more or one fewer, or another order."""
    short = [one for one in draft.constants() if one.data_type in (TensorProto.INT64, TensorProto.INT32)]
    tensor = draft.one([one for one in short if len(one.dims) == 1 and 0 < one.dims[0] <= _SMALL])
    content = array_of(tensor).tolist()
    how = draft.draw.randrange(4)
    if how == 0:
        draft.draw.shuffle(content)
    elif how == 1:
        del content[draft.draw.randrange(len(content))]
    elif how == 2:
        content.insert(draft.draw.randint(0, len(content)), draft.draw.choice((1, 0, -1, 2)))
    else:
        at = draft.draw.randrange(len(content))
        content[at] = draft.draw.choice((-1, 0, 1, content[at] - 1, content[at] + 1, -content[at], 2**31 - 1))
    store(tensor, np.array(content, numpy_type(tensor.data_type)))


def order(draft: Draft) -> None:
    """The elements of a constant in another order."""
    tensor = draft.one([one for one in draft.constants() if 1 < int(np.prod(one.dims)) <= 4096])
    array = array_of(tensor)
    numbers_ = np.random.default_rng(draft.draw.getrandbits(32))
    store(tensor, numbers_.permutation(array.reshape(-1)).reshape(array.shape))


def shape(draft: Draft) -> None:
    """A constant of another shape: ones are added or left out, or it is repeated along an axis."""
    tensor = draft.one(draft.constants())
    array = array_of(tensor)
    how = draft.draw.randrange(6)
    if how == 0:
        array = array[None]
    elif how == 1:
        array = np.expand_dims(array, draft.draw.randint(0, array.ndim))
    elif how == 2:
        array = np.squeeze(array)
    elif how == 3 and array.size == 1:
        array = array.reshape((1,) * draft.draw.randint(0, 4))
    elif array.ndim and array.size:
        axis = draft.draw.randrange(array.ndim)
        if how == 4:
            array = np.take(array, [0], axis)
        else:
            times = draft.draw.choice((2, 3, 4)) if array.shape[axis] == 1 else 2
            if array.size > 1 << 16:
                raise Unsuitable
            array = np.concatenate([array] * times, axis)
    else:
        array = np.broadcast_to(array, draft.draw.choice(((2,), (4,), (1, 1, 1, 1), (2, 1)))).copy()
    store(tensor, array)


def turned(draft: Draft) -> None:
    """A constant transposed."""
    tensor = draft.one([one for one in draft.constants() if len(one.dims) > 1])
    axes = list(range(len(tensor.dims)))
    draft.draw.shuffle(axes)
    store(tensor, array_of(tensor).transpose(axes))


def widened(draft: Draft) -> None:
    """One constant in the type of another one's elements."""
    tensor = draft.one(draft.constants())
    kind = draft.draw.choice((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64,
                              TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8))  # fmt: skip
    with np.errstate(all="ignore"):
        store(tensor, array_of(tensor).astype(numpy_type(kind)))


def shared(draft: Draft) -> None:
    """Readers of one constant read another one of its type."""
    tensor = draft.one(draft.graph.initializer)
    alike = [one for one in draft.graph.initializer if one.data_type == tensor.data_type]
    other = draft.one([one for one in alike if one.name != tensor.name])
    for node in draft.graph.node:
        for i, name in enumerate(node.input):
            if name == tensor.name:
                node.input[i] = other.name


def spelled(draft: Draft) -> None:
    """An initializer as a Constant node, or behind an Identity that must be folded first."""
    graph = draft.graph
    told = {one.name for one in graph.input} | {one.name for one in graph.output}
    tensor = draft.one([one for one in graph.initializer if one.name not in told])
    if draft.draw.random() < 0.5:
        node = helper.make_node("Constant", [], [tensor.name], value=copy.deepcopy(tensor))
        graph.initializer.remove(tensor)
    else:
        node = helper.make_node("Identity", [f"{tensor.name}_own"], [tensor.name])
        tensor.name += "_own"
    graph.node.insert(0, node)


def overridable(draft: Draft) -> None:
    """An initializer that a caller may replace, or that is an input and no constant at all."""
    graph = draft.graph
    told = {one.name for one in graph.input}
    tensor = draft.one([one for one in graph.initializer if one.name not in told])
    graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    if draft.draw.random() < 0.5 and is_float(tensor.data_type):
        graph.initializer.remove(tensor)
