"""What a result declares of shapes: of its outputs where sizes were chosen, of all values on request."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import structs

from ortopt.analysis.blocked_layout import blocked_layout
from ortopt.analysis.kernels import CPU
from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import CancellationToken
from ortopt.graph.facts import DECLARED, SHAPE, Dims, dims_of, shape_of
from ortopt.graph.symbolic import UNKNOWN, Dim, equal, is_invented, is_known
from ortopt.onnx_ir_internals import get_meta
from ortopt.options import Options, Target
from ortopt.serialization.load import SOURCE_KEY

LAYOUTS = 3
"""The level that arranges a graph for ONNX Runtime's layouts."""


def declare(model: ir.Model, options: Options, token: CancellationToken) -> None:
    """Let a model declare the shapes of its outputs that follow from the sizes of its inputs, and what is asked for.

    Args:
        model: The result; its values have been inferred, but for those of level 0.
        options: Options of the run.
        token: Cancellation token.
    """
    if options.level >= LAYOUTS and options.target is Target.ORT and CPU in options.providers:
        _mark_sums(model, token)
    _declare_what_passes_ask_for(model, token)
    resized = bool(options.dims or options.input_shapes)
    if not (resized or options.value_info):
        return
    if options.level == 0:
        infer_model(model, token)
    for value in model.graph.outputs if resized else ():
        _declare_output(value)
    origin = model.meta.get(SOURCE_KEY)
    if options.value_info and origin is not None:
        model.meta[SOURCE_KEY] = structs.replace(origin, typed=True)


def _mark_sums(model: ir.Model, token: CancellationToken) -> None:
    """Mark the operands of sums of images that are equally large, where ONNX Runtime infers too little to see it.

    It adds them in five dimensions otherwise, with a Reshape of each, and not in the convolution before them.
    """
    for node in blocked_layout(model.graph, token=token).unequal:
        operands = [value for value in node.inputs if value is not None]
        shapes = [dims_of(value) for value in operands]
        first = shapes[0]
        if first is None or any(is_invented(dim) or not is_known(dim) for dim in first):
            continue
        if all(other is not None and all(map(equal, first, other)) for other in shapes[1:]):
            for value in operands:
                value.meta[DECLARED] = True


def _declare_what_passes_ask_for(model: ir.Model, token: CancellationToken) -> None:
    """Let a file declare the values of the main graph that a pass has marked."""
    origin = model.meta.get(SOURCE_KEY)
    if origin is None or origin.typed is True:
        return
    marked = {
        value.name
        for node in token.checked(model.graph)
        for value in node.outputs
        if get_meta(value, DECLARED) and value.name and value.shape is not None
    }
    if marked:
        typed = origin.typed or frozenset()
        model.meta[SOURCE_KEY] = structs.replace(origin, typed=frozenset(marked) | typed)


def _declare_output(value: ir.Value) -> None:
    """Correct what an output declares by what is proven of it."""
    better, declared = get_meta(value, SHAPE), value.shape
    proven = shape_of(value)
    if better is None or better[0] is not declared or proven is None:
        return
    claimed = tuple(declared.dims) if declared is not None and len(declared) == len(proven) else None
    dims: Dims = tuple(map(_better, proven.dims, claimed or (UNKNOWN,) * len(proven)))
    denotations = [
        None if claimed is None or declared is None else declared.get_denotation(i) for i in range(len(dims))
    ]
    value.shape = ir.Shape(dims, denotations=denotations)
    value.meta[SHAPE] = (value.shape, proven)


def _better(proven: Dim, claimed: Dim) -> Dim:
    """A number that is proven, else what is declared, else an expression that is proven."""
    if isinstance(proven, int) or not is_known(claimed):
        return UNKNOWN if is_invented(proven) else proven
    return claimed
