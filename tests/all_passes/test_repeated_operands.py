"""One value at several places: a rewrite that replaces an operand replaces it at its place, not wherever it stands.

Each example that the tests of a pass rewrite is changed so that values stand at more places than one: each operand
is replaced by each other value of its type and shape that is there before. So are the examples made square, where all
dimensions are 4 and matrices fit in any place. What the pass makes of each is compared under ONNX Runtime without
optimization.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from ortopt import registry
from ortopt.options import Numerics, Options
from ortopt.semantics import RANDOM_OPS
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import all_fusions, run
from ortopt.verification.verify import verify
from tests.all_passes.pass_examples import examples
from tests.sessions import unoptimized

SLOW = {"group_fusion", "function_inlining"}
"""What has no pattern: it takes whole graphs, or calls."""

PASSES = sorted(kind.name for kind in registry.installed() if kind.__module__.startswith("ortopt."))
MAX_EXAMPLES = 4
MAX_OF_ONE = 1
"""Of the changed forms of one example that the pass rewrites, so many are compared."""

MAX_TRIED = 24
SIDE = 4
FLOATS = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}


def square(model: ModelProto) -> ModelProto | None:
    """A model without other graphs whose float inputs and constants all have dimensions of 4; it may make no sense."""
    if any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute):
        return None
    made = ModelProto()
    made.CopyFrom(model)
    drawn = np.random.default_rng(3)
    for value in made.graph.input:
        shape = value.type.tensor_type.shape
        if value.type.tensor_type.elem_type in FLOATS:
            for dim in shape.dim:
                dim.dim_value = SIDE
    for tensor in made.graph.initializer:
        if tensor.data_type in FLOATS and len(tensor.dims) >= 1 and max(tensor.dims, default=1) > 1:
            content = drawn.uniform(0.5, 1.5, [SIDE] * len(tensor.dims)).astype(FLOATS[tensor.data_type])
            tensor.CopyFrom(numpy_helper.from_array(content, tensor.name))
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    del made.graph.value_info[:]
    return made


def kinds(model: ModelProto) -> dict[str, tuple[Any, ...]]:
    """The type and the dimensions of each value of the main graph, where they are known."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    found: dict[str, tuple[Any, ...]] = {
        tensor.name: (tensor.data_type, *tensor.dims) for tensor in inferred.initializer
    }
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor_type = value.type.tensor_type
        if value.type.HasField("tensor_type") and tensor_type.HasField("shape"):
            dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor_type.shape.dim]
            if "" not in dims:
                found[value.name] = (tensor_type.elem_type, *dims)
    return found


def repeated(model: ModelProto) -> Iterator[ModelProto]:
    """Models in which one operand more is a value that is elsewhere too."""
    known = kinds(model)
    given = [value.name for value in model.graph.input] + [tensor.name for tensor in model.graph.initializer]
    for index, node in enumerate(model.graph.node):
        before = [*given, *(name for other in model.graph.node[:index] for name in other.output)]
        for place, name in enumerate(node.input):
            for other in dict.fromkeys(before):
                if other != name and name in known and known.get(other) == known[name]:
                    made = ModelProto()
                    made.CopyFrom(model)
                    made.graph.node[index].input[place] = other
                    yield made


def runs(model: ModelProto) -> bool:
    """Whether ONNX Runtime takes a model."""
    try:
        unoptimized(model)
    except Exception:
        return False
    return True


def is_random(model: ModelProto) -> bool:
    return any((node.domain, node.op_type) in RANDOM_OPS for node in model.graph.node)


@pytest.mark.parametrize("name", [name for name in PASSES if name not in SLOW])
def test_operands_that_are_one_value(name: str) -> None:
    for model, more in itertools.islice(examples(name), MAX_EXAMPLES):
        if is_random(model) or not more.get("numbers", True):
            continue
        options = more.get("options") or all_fusions(more.get("target", "ort"))
        for form in (model, square(model)):
            if form is not None:
                compare(name, form, options, more.get("level"))


def compare(name: str, model: ModelProto, options: Options, level: int | None) -> None:
    compared = 0
    for candidate in itertools.islice(repeated(model), MAX_TRIED):
        if compared == MAX_OF_ONE:
            return
        try:
            original, changed = load(candidate), load(candidate)
        except Exception:
            continue
        if not run(name, changed, level=level, options=options)[0] or not runs(candidate):
            continue
        compared += 1
        finite = registry.installed().find(name).numerics is Numerics.FINITE
        outcome = verify(original, changed, finite_math=finite, in_process=True)
        text = onnx.printer.to_text(candidate.graph)
        assert outcome.status != "differs", f"{outcome.reason}\n{text}\n->\n{onnx_text(to_bytes(changed))}"


def onnx_text(content: bytes) -> str:
    return onnx.printer.to_text(onnx.load_from_string(content).graph)
