"""Rows that are added to rows, or written over them, element by element along one axis instead of several."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import dims, dtype, inputs, need, need_fixed, producer, same_dim
from ortopt.options import MEASURED_TARGETS
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule

ALONG_ONE_AXIS = Form("", "ScatterElements", "of rows along one axis")


class ScatterRowsConversion(CpuRule[Match]):
    """``ScatterElements(x, Expand(i), u)`` of rows → one of the elements of x along a single axis.

    Graph networks add what comes along edges to the rows of nodes so: an index for each row, repeated for its elements.
    ONNX Runtime finds the place of each element anew from all of its coordinates, and along one axis there is one.

    Rows are written in the same order, so sums are rounded as before. ScatterND would write whole rows, but adds with
    several threads at once, and loses summands where an index occurs twice.
    """

    targets = MEASURED_TARGETS
    roots = ("ScatterElements",)
    opsets = (11, NEWEST_OPSET)
    after = ("constant_folding",)
    weighs = (ALONG_ONE_AXIS,)

    def match(self, root: ir.Node) -> Match:
        """An index for each row of the updates, which have whole rows of what they are written to."""
        x, indices, updates = inputs(root, 3)
        need(ops.OneAxis(root).axis == 0, "it is not along the first axis", root)
        expand = producer(indices, "Expand")
        index = inputs(expand, 1)[0]
        need(dtype(index) == ir.DataType.INT64, "the index could be too large for its type", index)
        shape, own = dims(x), dims(index)
        row = need_fixed(shape[1:], "the size of a row is not known", x)
        need(math.prod(row) > 0, "the rows are empty", x)
        whole = len(dims(updates)) == len(shape) and all(map(same_dim, dims(updates)[1:], row))
        need(whole, "the updates are parts of rows", updates)
        need(len(own) == len(shape) and all(same_dim(dim, 1) for dim in own[1:]), "elements of a row part", index)
        need(same_dim(own[0], dims(indices)[0]), "one index is repeated for several rows", index)
        check_faster(root, ALONG_ONE_AXIS, row=math.prod(row))
        return Match((root,), lambda: _along_one_axis(root, index, row))


def _along_one_axis(root: ir.Node, index: ir.Value, row: tuple[int, ...]) -> ir.Node:
    """The same along one axis: element j of row i is element ``i · size + j``, for an i that counts from the end, too.

    Args:
        root: The ScatterElements.
        index: The index of each row, [rows, 1, …].
        row: The dimensions of a row.
    """
    x, _, updates = inputs(root, 3)
    size = math.prod(row)
    places = constant(np.arange(size).reshape(1, *row))
    first = ir.node("Mul", [index, constant(size)]).outputs[0]
    flat = [_flat(value) for value in (x, ir.node("Add", [first, places]).outputs[0], updates)]
    return ir.node("Reshape", [ops.copied(root, flat, axis=0).outputs[0], constant([-1, *row])])


def _flat(value: ir.Value) -> ir.Value:
    return ir.node("Reshape", [value, constant([-1])]).outputs[0]
