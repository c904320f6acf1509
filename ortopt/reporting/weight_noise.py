"""Seeded noise in place of weights: a reproducer shows what went wrong without the weights of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import scope
from ortopt.reporting.excerpt import same_content
from ortopt.semantics import constant_content

MIN_WEIGHT = 9
"""Constants of floats with fewer elements are no weights: they say what is computed."""

MAX_TRIES = 12
"""How often it is tried whether a failure survives noise in place of weights: of all, of halves, of quarters ..."""


class _Weight(Struct, frozen=True):
    """A constant that may be confidential.

    Attributes:
        name: Its name, or that of its Constant's result.
        tensor: What it holds.
        put: Sets its content.
    """

    name: str
    tensor: ir.TensorProtocol
    put: Callable[[ir.TensorProtocol], None]


def _weights(model: ir.Model) -> dict[tuple[str, int], _Weight]:
    """A model's weights, in all graphs, by name and a number: two subgraphs may have the same names."""
    weights: dict[tuple[str, int], _Weight] = {}

    def add(name: str, tensor: ir.TensorProtocol | None, put: Callable[[ir.TensorProtocol], None]) -> None:
        if tensor is None or tensor.size < MIN_WEIGHT or not _may_be_weight(tensor.dtype):
            return
        number = 0
        while (name, number) in weights:
            number += 1
        weights[name, number] = _Weight(name, tensor, put)

    for graph in scope.graphs(model):
        for name, value in graph.initializers.items():
            add(name, value.const_value, functools.partial(setattr, value, "const_value"))
        for node in graph:
            if node.op_type == "Constant" and not node.domain:
                add(node.outputs[0].name or "", constant_content(node), functools.partial(_set_content, node))
    return weights


def _may_be_weight(dtype: ir.DataType) -> bool:
    """Whether it is of floats, or quantized: wider integers are shapes and indices."""
    return dtype.is_floating_point() or (dtype.is_integer() and dtype.bitwidth <= 8)


def _set_content(node: ir.Node, tensor: ir.TensorProtocol) -> None:
    node.attributes.clear()
    node.attributes["value"] = ir.AttrTensor("value", tensor)
    node.outputs[0].const_value = None


def _noise(tensor: ir.TensorProtocol, seed: int) -> ir.TensorProtocol:
    rng = np.random.default_rng(seed)
    shape = tuple(tensor.shape.numpy())
    numbers: np.ndarray[Any, Any]
    if tensor.dtype.is_integer():
        numbers = rng.integers(int(tensor.dtype.min), int(tensor.dtype.max) + 1, shape)
    else:
        numbers = rng.standard_normal(shape) / 8
    return ir.Tensor(numbers.astype(tensor.dtype.numpy()), tensor.dtype, name=tensor.name)


def replace_weights(models: Sequence[ir.Model], survives: Callable[[], bool]) -> tuple[list[str], list[str]]:
    """Replace the weights of models by seeded noise, the same in all, as far as what they show survives that.

    Args:
        models: A model, or two versions of it.
        survives: Whether the models still show it.

    Returns:
        The names of the weights that were replaced, and of those that were kept.
    """
    tables = [_weights(model) for model in models]
    first, last = tables[0], tables[-1]
    keys = [key for key, weight in first.items() if key not in last or same_content(weight.tensor, last[key].tensor)]
    pending = [keys] if keys else []
    replaced: list[str] = []
    tries = 0
    while pending and tries < MAX_TRIES:
        chosen = pending.pop(0)
        originals = [weights[key] for key in chosen for weights in tables if key in weights]
        for seed, key in enumerate(chosen):
            for weights in tables:
                if key in weights:
                    weights[key].put(_noise(first[key].tensor, seed))
        tries += 1
        if survives():
            replaced += [first[key].name for key in chosen]
            for weights in tables:
                for key in chosen:
                    weights.pop(key, None)
            continue
        for weight in originals:
            weight.put(weight.tensor)
        if len(chosen) > 1:
            half = len(chosen) // 2
            pending += [chosen[:half], chosen[half:]]
    return sorted(replaced), sorted({weight.name for weights in tables for weight in weights.values()})
