"""Dimensions may be 0, whether a file says so or an input comes so: no pass divides by one.

The examples of each pass's tests, rewritten or not, are read with each dimension of each input set to 0 in turn. What
of them is no model any more is left out. A pass may do with the others what it likes, but not raise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from onnx import ModelProto

from ortopt import registry
from ortopt.serialization.load import load
from ortopt.testing import all_fusions, run
from tests.all_passes.pass_examples import examples, refusals

PASSES = sorted(kind.name for kind in registry.installed() if kind.__module__.startswith("ortopt."))


def emptied(model: ModelProto) -> Iterator[ModelProto]:
    """The model with each dimension of each input set to 0 in turn."""
    for place, value in enumerate(model.graph.input):
        for axis in range(len(value.type.tensor_type.shape.dim)):
            changed = ModelProto()
            changed.CopyFrom(model)
            changed.graph.input[place].type.tensor_type.shape.dim[axis].dim_value = 0
            for output in changed.graph.output:  # what they declare may not hold any more
                output.type.tensor_type.ClearField("shape")
            yield changed


def cases(name: str) -> Iterator[tuple[ModelProto, dict[str, Any]]]:
    kept = ((model, more) for _, model, more in refusals(name))
    for model, more in itertools.chain(examples(name), kept):
        for changed in emptied(model):
            yield changed, more


@pytest.mark.parametrize("name", PASSES)
def test_a_dimension_of_0(name: str) -> None:
    for model, more in cases(name):
        try:
            loaded = load(model)
        except Exception:
            continue
        options = more.get("options") or all_fusions(more.get("target", "ort"))
        run(name, loaded, level=more.get("level"), options=options)
