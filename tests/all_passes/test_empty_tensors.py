"""Dimensions may be 0, whether a file says so or an input comes so: no pass divides by one.

The examples of each pass's tests, rewritten or not, are read with each dimension of each input and each weight set to 0
in turn, with those of all inputs that have a name, and with such names expected to be 0; of an example with very many
dimensions, only some. What of them is no model any more is left out. A pass may do with the others what it likes, but
not raise.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from ortopt import registry
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.testing import all_fusions, run
from tests.all_passes.pass_examples import examples, refusals

PASSES = sorted(kind.name for kind in registry.installed() if kind.__module__.startswith("ortopt."))


MAX_FORMS = 16
MAX_FORMS_OF_KEPT = 4
"""Of the forms of one example, about so many are tried, evenly spread; fewer of one that is not rewritten anyway."""


def emptied(model: ModelProto) -> Iterator[ModelProto]:
    """The model with each dimension of each input and weight set to 0 in turn, and with all that have a name."""
    for place, value in enumerate(model.graph.input):
        for axis in range(len(value.type.tensor_type.shape.dim)):
            changed = copy_of(model)
            changed.graph.input[place].type.tensor_type.shape.dim[axis].dim_value = 0
            yield changed
    for place, weight in enumerate(model.graph.initializer):
        for axis in range(len(weight.dims)):
            changed = copy_of(model)
            content = np.delete(numpy_helper.to_array(weight), np.s_[:], axis)
            changed.graph.initializer[place].CopyFrom(numpy_helper.from_array(content, weight.name))
            yield changed
    if names_of(model):
        changed = copy_of(model)
        for value in changed.graph.input:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_value = 0
        yield changed


def spread(forms: Iterator[ModelProto], most: int) -> list[ModelProto]:
    """Some of many forms, evenly spread, or all of few."""
    found = list(forms)
    return found[:: -(-len(found) // most)] if found else []


def copy_of(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.graph.ClearField("value_info")
    for output in copy.graph.output:  # what they declare may not hold any more
        output.type.tensor_type.ClearField("shape")
    return copy


def names_of(model: ModelProto) -> set[str]:
    """The names of free dimensions of inputs."""
    dims = (dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim)
    return {dim.dim_param for dim in dims if dim.dim_param}


def cases(name: str) -> Iterator[tuple[ModelProto, Options, dict[str, Any]]]:
    rewritten = ((model, more, MAX_FORMS) for model, more in examples(name))
    kept = ((model, more, MAX_FORMS_OF_KEPT) for _, model, more in refusals(name))
    for model, more, most in itertools.chain(rewritten, kept):
        options = more.get("options") or all_fusions(more.get("target", "ort"))
        for changed in spread(emptied(model), most):
            yield changed, options, more
        expected = dict.fromkeys(names_of(model), (0, 0))
        if expected:
            yield model, dataclasses.replace(options, dim_hints=expected), more


@pytest.mark.parametrize("name", PASSES)
def test_a_dimension_of_0(name: str) -> None:
    for model, options, more in cases(name):
        try:
            loaded = load(model)
        except Exception:
            continue
        run(name, loaded, level=more.get("level"), options=options)
