"""By how much a kernel of ONNX Runtime alone may change the numbers of an output, however small they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import shape_of
from ortopt.graph.symbolic import quotient_exact
from ortopt.semantics.op_traits import CHOOSING, FROM_FIRST_OPERAND, SELECTING
from ortopt.views.index_map import IndexMap, place_of, strides_of
from ortopt.views.reading import maps

SIGMOID_STEP: Final = 6 * 2.0**-24
"""How far two results of a float32 Sigmoid may be apart whose operands all but agree.

ONNX Runtime's kernel computes 0.5 + p / q: its error is up to 3 units in the last place of 1, however small the result.
So where all of an output is near 0, its last digits are as large as the output.
"""

_OF_FIRST: Final = FROM_FIRST_OPERAND - {"Resize", "Upsample"}  # these may interpolate


def kernel_steps(model: ir.Model, *, is_inferred: bool = False) -> dict[str, float]:
    """For outputs whose numbers all come from a Sigmoid, moved or chosen: by how much its kernel may change each.

    What is chosen, by a maximum or a TopK, differs by no more than what it is chosen from.

    Args:
        model: The model.
        is_inferred: Whether its shapes have been inferred, and its graphs know their scope: a part of a Concat then
            comes from the operands that it is of.
    """
    steps: set[ir.Value | None] = set()
    for node in model.graph:
        operator = node.op_type if not node.domain else ""
        sources = node.inputs[:1]
        if operator in CHOOSING:
            sources = [value for value in node.inputs if value is not None and not _is_apart(value)]
        elif operator not in _OF_FIRST and operator != "Sigmoid":
            continue
        if operator == "Sigmoid" or (sources and steps.issuperset(sources)):
            steps.update(node.outputs[: None if operator == "Split" else 1])
        elif is_inferred and operator in SELECTING:
            steps.update(value for value in node.outputs if any(map(steps.issuperset, _joined(value))))
    is_float = ir.DataType.FLOAT
    return {
        value.name or "": SIGMOID_STEP for value in model.graph.outputs if value in steps and value.dtype == is_float
    }


def _is_apart(value: ir.Value) -> bool:
    """Whether it holds constants, or says what is chosen rather than being chosen from."""
    producer = value.producer()
    is_constant = value.is_initializer() or (producer is not None and producer.op_type == "Constant")
    return is_constant or (value.dtype is not None and not value.dtype.is_floating_point())


def _joined(value: ir.Value) -> Iterator[Sequence[ir.Value | None]]:
    """For each Concat that a value is a part of, moved at most: the operands of which this part is."""
    for found in maps(value):
        concat = found.source.producer()
        if concat is not None and concat.op_type == "Concat" and not concat.domain:
            place = ops.Concat(concat).axis_of(len(found.shape))
            shapes = [shape_of(operand) for operand in concat.inputs if operand is not None]
            sizes = [shape[place] for shape in shapes if shape is not None]
            ends = list(accumulate(size for size in sizes if isinstance(size, int)))
            first, last = _bounds(found, place)
            if len(ends) == len(concat.inputs) and first is not None:
                yield [
                    operand
                    for operand, start, end in zip(concat.inputs, (0, *ends), ends, strict=False)
                    if start <= last and first < end
                ]


def _bounds(found: IndexMap, place: int) -> tuple[int | None, int]:
    """The first and the last place along a dimension of its source that a map takes; None where that is not known."""
    first, strides = found.starts[place], strides_of(found.shape)
    last = first
    for axis in found.axes:
        if place_of(axis, strides) == place:
            step = quotient_exact(axis.stride, strides[place])
            if not (isinstance(axis.size, int) and isinstance(step, int) and isinstance(last, int)):
                return None, 0
            last += (axis.size - 1) * step
    return (first, last) if isinstance(first, int) and isinstance(last, int) else (None, 0)
