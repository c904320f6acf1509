"""One product for several projections writes them side by side, and a Split copies them apart again."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster, is_asked_for
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Code,
    Refusal,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used,
    is_used_once,
    need,
    need_float32,
    operand_constant,
    tensor_of,
)
from ortopt.linear.weights import MAX_BYTES
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.parallel_parts import MERGED
from ortopt.rule import RewriteRule

PARTS = Form("", "MatMul", "one for each part")


class Found(Struct, frozen=True):
    """The product, the sum if there is one, and the Split.

    Attributes:
        nodes: These nodes.
        x: What is projected.
        weight: Its content, [width, all columns].
        bias: The content of what is added, one number for each column; None if nothing is.
        bounds: Where the parts begin, and where the last one ends.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weight: np.ndarray
    bias: np.ndarray | None
    bounds: tuple[int, ...]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The parts that anything needs."""
        return tuple(filter(is_used, self.nodes[-1].outputs))


class MatmulSplitDecomposition(RewriteRule[Found]):
    """``Split(x·[V|W] + [b|c])`` → ``x·V + b``, ``x·W + c``, for more than a few rows.

    Exporters write queries, keys and values as one product, and the two projections of a gated layer. Each alone is as
    fast, and nothing is copied. With one row it depends on the processor.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Split",)
    weighs = (PARTS,)
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED  # with fewer columns, a kernel may sum in another order
    keeps_elementwise = True

    def match(self, root: ir.Node) -> Found:
        """Parts of the columns of a product with a constant matrix, which nothing else reads."""
        value = inputs(root, len(root.inputs))[0]
        need(ops.Split(root).is_last, "it splits no columns", root)
        need_float32(value)
        sizes = [dims(part)[-1] for part in root.outputs]
        widths = [size for size in sizes if isinstance(size, int) and size > 0]
        need(len(widths) == len(sizes) > 1, "the parts' sizes are not known", root)
        last = _producer_for_it_alone(value)
        bias: np.ndarray | None = None
        nodes: tuple[ir.Node, ...] = (last, root)
        if is_op(last, "Add"):
            added, product = operand_constant(last)
            bias, last = array_of(added), _producer_for_it_alone(product)
            nodes = (last, *nodes)
            need(bias.shape == (sum(widths),), "what is added is no row", added)
        need(is_op(last, "MatMul"), "no product with a constant matrix is above it", last)
        x, weight = inputs(last, 2)
        need(is_constant(weight) and len(dims(weight)) == 2, "no product with a constant matrix is above it", weight)
        need(use_count(weight) == 1 and not weight.is_graph_output(), "the matrix is used elsewhere", weight)
        need(tensor_of(weight).nbytes <= MAX_BYTES, "the matrix is large", weight)
        need(not is_asked_for(root, MERGED), "the parts are to be one product (--force-forms)", root, code=Code.OPTION)
        check_faster(root, PARTS, rows=dims(x)[:-1])
        bounds = tuple(itertools.accumulate(widths, initial=0))
        return Found(nodes, x, array_of(weight), bias, bounds)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build a product for each part."""
        parts = zip(found.nodes[-1].outputs, itertools.pairwise(found.bounds), strict=True)
        return {part: _part(found, start, end) for part, (start, end) in parts if is_used(part)}


def _part(found: Found, start: int, end: int) -> ir.Value:
    columns = np.ascontiguousarray(found.weight[:, start:end])
    product = ir.node("MatMul", [found.x, constant(columns)])
    if found.bias is None:
        return product.outputs[0]
    return ir.node("Add", [product.outputs[0], constant(found.bias[start:end])]).outputs[0]


def _producer_for_it_alone(value: ir.Value) -> ir.Node:
    node = value.producer()
    if node is None or node.graph is not value.graph or not is_used_once(value):
        raise Refusal("no product with a constant matrix is above it alone", value)
    return node
