"""What can be measured of a table of costs: for each form, two small models that compute the same, at given sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from ortopt import registry
from ortopt.analysis.costs import Form
from ortopt.api import optimize
from ortopt.semantics.domains import MICROSOFT

Array: TypeAlias = "np.ndarray[Any, Any]"
Given: TypeAlias = Mapping[str, int]
"""Sizes by the names of the table, and others that only the models have."""

_IR_VERSION: Final = 10
_MOST_COPIES: Final = 8
_ENOUGH_ELEMENTS: Final = 40_000
"""From so many elements on, a single call of a kernel takes much longer than a call of a session."""


@dataclass(frozen=True, slots=True)
class FormComparison:
    """Two ways to compute the same.

    Attributes:
        inputs: The inputs, by name.
        before: The nodes that the form stands for, as ONNX text; their result is ``y``.
        after: The form and what it needs around it; its result is ``y``. Empty where passes make it.
        weights: Constants, by name.
        result: The result's type.
        opset: The opset of ai.onnx.
        repeats: Whether the result may be the input ``x`` again: the form is then repeated, as a call of a session
            takes a few microseconds by itself.
        made_by: The passes that make the form of `before`, whatever the table knows of it.
    """

    inputs: Mapping[str, Array]
    before: str
    after: str = ""
    weights: Mapping[str, Array] = field(default_factory=dict)
    result: str = "float[]"
    opset: int = 18
    repeats: bool = False
    made_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A form that can be measured.

    Attributes:
        form: The form.
        instead_of: The nodes that it stands for, in words.
        build: The two models for given sizes.
        cases: The sizes at which it is measured, small ones first.
        as_loaded: Whether ONNX Runtime optimizes both when it loads them; else kernels are compared as they stand.
    """

    form: Form
    instead_of: str
    build: Callable[[Given], FormComparison]
    cases: Sequence[Given]
    as_loaded: bool = False


def models(forms: FormComparison) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The two models: what the form stands for, and the form."""
    before = _model(forms, forms.before)
    return before, _rewritten(before, forms.made_by) if forms.made_by else _model(forms, forms.after)


def _rewritten(model: onnx.ModelProto, passes: Sequence[str]) -> onnx.ModelProto:
    """What passes make of a model."""
    kinds = [registry.installed().find(name) for name in passes]
    wanted = [str(Form(*form)) for kind in kinds for form in kind.weighs]
    return optimize(model, only=passes, force_forms=wanted, verify=False).to_proto()


def _model(forms: FormComparison, body: str) -> onnx.ModelProto:
    signature = ", ".join(f"{_type(array)} {name}" for name, array in forms.inputs.items())
    header = f'<ir_version: {_IR_VERSION}, opset_import: ["" : {forms.opset}, "{MICROSOFT}" : 1]>'
    model: onnx.ModelProto = onnx.parser.parse_model(f"{header} g ({signature}) => ({forms.result} y) {{ {body} }}")
    if forms.repeats:
        _repeat(model.graph, _copies(forms.inputs["x"]))
    used = {name for node in model.graph.node for name in node.input}
    for name, array in forms.weights.items():
        if name in used:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _copies(x: Array) -> int:
    return max(1, min(_MOST_COPIES, _ENOUGH_ELEMENTS // max(x.size, 1)))


def _repeat(graph: onnx.GraphProto, copies: int) -> None:
    """Put copies of a graph's nodes one behind the other: ``y`` of one is ``x`` of the next."""
    nodes = list(graph.node)
    inner = {name for node in nodes for name in node.output if name}
    del graph.node[:]
    last = "x"
    for number in range(copies):
        names = {name: f"{name}_{number}" for name in inner} | {"x": last}
        if number == copies - 1:
            names["y"] = "y"
        for node in nodes:
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.name = ""
            copy.input[:] = [names.get(name, name) for name in node.input]
            copy.output[:] = [names.get(name, name) for name in node.output]
        last = names["y"]


def _type(array: Array) -> str:
    name = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(array.dtype)).lower()
    return f"{name}[{','.join(map(str, array.shape))}]"


def normal(*shape: int) -> Array:
    """Floats around 0, the same for the same shape."""
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def weight(*shape: int) -> Array:
    """A weight that keeps a product's numbers as large as they are."""
    scale = np.float32(1 / np.sqrt(max(int(np.prod(shape[:-1])), 1)))
    return normal(*shape) * scale


def integers(dtype: type[np.generic], low: int, high: int, *shape: int) -> Array:
    """Integers of a range, the same for the same shape."""
    return np.random.default_rng(list(shape)).integers(low, high, shape).astype(dtype)


def scalars(**values: float) -> dict[str, Array]:
    """Constants without dimensions."""
    return {name: np.full((), value, np.float32) for name, value in values.items()}


def shape(*sizes: int) -> Array:
    """A shape as a constant."""
    return np.array(sizes, np.int64)


def cases(**sizes: Sequence[int]) -> tuple[dict[str, int], ...]:
    """Sizes of several cases: of each name one number a case."""
    names = list(sizes)
    return tuple(dict(zip(names, row, strict=True)) for row in zip(*sizes.values(), strict=True))


__all__ = [
    "MICROSOFT",
    "Array",
    "Entry",
    "FormComparison",
    "Given",
    "cases",
    "integers",
    "models",
    "normal",
    "scalars",
    "shape",
    "weight",
]
