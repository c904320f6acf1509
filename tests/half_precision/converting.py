"""Helpers of the tests of half precision: a text converted, its types read, its numbers compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.graph import scope
from ortopt.half_precision.conversion import casts, convert
from ortopt.half_precision.division import Division
from ortopt.half_precision.formats import FLOAT16, Format
from ortopt.half_precision.rounded_copy import rounded_copy
from ortopt.half_precision.units import Units
from ortopt.optimization.half_precision_conversion import matches
from ortopt.optimization.half_precision_measurement import slice_error
from ortopt.options import Options
from ortopt.serialization.checks.structure import validate
from ortopt.testing import parse
from ortopt.verification.inputs import draw_inputs
from tests.sessions import unoptimized

CPU = ("CPUExecutionProvider",)
CUDA = ("CUDAExecutionProvider", "CPUExecutionProvider")


def prepared(text: str, opset: int = 17) -> ir.Model:
    """A text's model, inferred."""
    model = parse(text, opset)
    scope.attach(model, Options())
    shapes.infer_model(model)
    return model


def divided(
    model: ir.Model,
    *,
    keep: Sequence[str] = (),
    interface_too: bool = False,
    form: Format = FLOAT16,
    providers: Sequence[str] = CPU,
) -> Division:
    """A model's division, with ops and names that stay in float32."""
    units = Units(model, form, providers, interface_too=interface_too)
    kept = [node for graph in scope.graphs(model) for node in graph if matches(node, keep)]
    return Division(units.without(kept, "kept"))


def converted(text: str, opset: int = 17, *, form: Format = FLOAT16, **more: Any) -> ir.Model:
    """A text's model in 16 bits; valid, its types those that its ops give, and loadable."""
    model = prepared(text, opset)
    result = convert(model, divided(model, form=form, **more), form)
    validate(result)
    check_types(result)
    return result


def check_types(model: ir.Model) -> None:
    """Make sure that each value has the type that its op gives."""
    declared = {
        value: value.dtype for graph in scope.graphs(model) for node in graph for value in node.outputs if value.name
    }
    scope.attach(model, Options())
    shapes.infer_model(model)
    for value, dtype in declared.items():
        assert value.dtype == dtype, f"{value.name} is of {value.dtype} and was said to be of {dtype}"


def dtypes(model: ir.Model, op: str) -> list[str]:
    """The dtypes of what an op gives first, in order."""
    return [
        str(node.outputs[0].dtype.name).lower() if node.outputs[0].dtype is not None else "?"
        for graph in scope.graphs(model)
        for node in graph
        if node.op_type == op
    ]


def inner_casts(model: ir.Model) -> list[str]:
    """The Casts between floats, by what they give."""
    return [str(node.outputs[0].dtype.name).lower() for node in casts(model)]  # type: ignore[union-attr]


def run(model: ir.Model, feeds: dict[str, Any]) -> list[Any]:
    """A model's outputs under ONNX Runtime without optimization."""
    return list(unoptimized(model).run(None, feeds))


def check_numbers(text: str, result: ir.Model, opset: int = 17, *, form: Format = FLOAT16, limit: float = 1e-2) -> None:
    """Make sure that a converted model gives what the original does, rounded at each step; and that it loads."""
    original = parse(text, opset)
    feeds = draw_inputs(original)
    half = {value.name: value.dtype.numpy() for value in result.graph.inputs if value.dtype == form.dtype}  # type: ignore[union-attr]
    rounded = {name: np.asarray(value).astype(half.get(name, np.asarray(value).dtype)) for name, value in feeds.items()}
    expected = run(original, feeds)
    models = [rounded_copy(result, form.dtype)] + ([result] if form is FLOAT16 else [])
    for model in models:
        got = run(model, rounded)
        errors = [slice_error(a, _as_single(b)) for a, b in zip(expected, got, strict=True)]
        assert max(errors) <= limit, errors


def constant(name: str, array: Any) -> str:
    """An initializer in ONNX's text form."""
    dims = ",".join(map(str, array.shape))
    return f"float[{dims}] {name} = {{{', '.join(map(str, array.reshape(-1).tolist()))}}}"


def _as_single(array: Any) -> Any:
    return array.astype(np.float32) if getattr(array, "dtype", None) == np.float16 else array
