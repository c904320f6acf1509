"""A model and its inputs with every float off by about a rounding: what the model itself makes of rounding."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fuzzing.writer import Array

_EPSILONS: Final = {TensorProto.FLOAT: 1e-6, TensorProto.DOUBLE: 1e-14, TensorProto.FLOAT16: 2e-3}


def disturbed_feeds(feeds: Mapping[str, Array], trial: int) -> dict[str, Array]:
    """The same inputs, off by about a rounding."""
    numbers = np.random.default_rng(trial)
    return {name: _disturbed(array, numbers) for name, array in feeds.items()}


def _disturbed(array: Array, numbers: np.random.Generator) -> Array:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return array
    epsilon = _EPSILONS[helper.np_dtype_to_tensor_dtype(array.dtype)]
    with np.errstate(all="ignore"):
        return np.asarray(array * (1 + epsilon * numbers.choice((-1.0, 1.0), array.shape))).astype(array.dtype)


def disturbed(model: ModelProto, trial: int) -> ModelProto:
    """The model with weights, and results of the main graph's nodes, that are off by about a rounding."""
    numbers = np.random.default_rng(trial)
    twin = copy.deepcopy(model)
    for tensor in twin.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.size > 1 and array.dtype.kind == "f":
            tensor.CopyFrom(numpy_helper.from_array(_disturbed(array, numbers), tensor.name))
    try:
        typed = onnx.shape_inference.infer_shapes(twin)
    except onnx.shape_inference.InferenceError:  # weights alone are disturbed then
        return twin
    kinds = {one.name: one.type.tensor_type.elem_type for one in (*typed.graph.value_info, *typed.graph.output)}
    nodes = list(twin.graph.node)
    del twin.graph.node[:]
    for node in nodes:
        copied = twin.graph.node.add()
        copied.CopyFrom(node)
        if node.op_type == "Constant":
            continue
        for i, name in enumerate(node.output):
            kind = kinds.get(name, 0)
            if kind not in _EPSILONS:
                continue
            copied.output[i] = raw = f"{name}~raw"
            off = np.array(1 + _EPSILONS[kind] * numbers.choice((-1.0, 1.0)), helper.tensor_dtype_to_np_dtype(kind))
            twin.graph.initializer.append(numpy_helper.from_array(off, f"{name}~off"))
            twin.graph.node.append(helper.make_node("Mul", [raw, f"{name}~off"], [name]))
    return twin
