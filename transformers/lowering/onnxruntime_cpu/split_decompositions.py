"""Splits of what a linear op gives: an op for each part."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster, is_asked_for
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Absent,
    Code,
    Refusal,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used,
    is_used_once,
    need,
    need_fixed,
    need_float32,
    optional,
    tensor_of,
    users,
)
from ortopt.linear.layer import Linear, product
from ortopt.linear.weights import MAX_BYTES
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics
from ortopt.patterns.convolutions import is_convolution
from ortopt.patterns.parallel_parts import MERGED
from ortopt.rule import Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import bias_of
from ortopt.transformers.lowering.onnxruntime_cpu._rules import FOR_BLOCKS, CpuRule

ACTIVATIONS = ("Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Gelu")
MAX_STEPS = 3


class ConvSplitDecomposition(CpuRule[Match]):
    """``Split(Relu(Conv(x, W)))`` → ``Relu(Conv(x, W₁))``, ``Relu(Conv(x, W₂))``, … for parts in whole blocks.

    Splitting channels ends ONNX Runtime's blocked layout; convolutions that give the parts do not.

    Detectors split what a convolution gives in two halves, one of which goes on alone (CSP blocks, YOLO).

    What joins the whole with other channels joins the parts instead.
    """

    roots = ("Split",)
    numerics = Numerics.REORDERED  # with fewer outputs, a kernel may sum in another order
    produces = ((MICROSOFT, "FusedConv"), (MICROSOFT, "QuickGelu"))

    def match(self, root: ir.Node) -> Match:
        """Parts of channels, out of a convolution and activations that nothing else reads."""
        value = inputs(root, len(root.inputs))[0]
        need(len(dims(value)) == 4 and ops.Split(root).axis == 1, "it splits no channels of an image", root)
        need_float32(value, FOR_BLOCKS)
        sizes = [_channels(part) for part in root.outputs]
        need(all(size > 0 and size % BLOCK == 0 for size in sizes), "the parts are no whole blocks", root)
        need(any(map(_is_convolved, root.outputs)), "no convolution reads a part", root)
        others = [user for user in users(value) if user is not root]
        joined = all(is_op(user, "Concat") and ops.Concat(user).axis == 1 for user in others)
        need(joined and not value.is_graph_output(), "what is split is used elsewhere", value)
        nodes = [root, *_producers(value)]
        convolution = nodes[-1]
        need(ops.Conv(convolution).group == 1, "the convolution has groups", convolution)
        need(optional(convolution, 3) is None, "it adds another value", convolution)
        weight = convolution.inputs[1]
        need(array_of(weight).shape[0] == sum(sizes), "the parts are not all channels", root)
        bias_of(convolution)
        replaced = (value,) if others else ()
        return Match(tuple(nodes), lambda: _parts(nodes, sizes, replaced), replaced)


def _channels(value: ir.Value) -> int:
    return need_fixed(dims(value, rank=4)[1:2], "a part's channels are not known", value)[0]


def _parts(nodes: Sequence[ir.Node], sizes: Sequence[int], whole: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Build for each part a convolution with its weights, and the activations.

    Args:
        nodes: The Split, and what comes before it, the convolution last.
        sizes: The channels of the parts.
        whole: What is split, if something else reads it too.
    """
    root, *activations, convolution = nodes
    parts = {}
    for old, (start, end) in zip(root.outputs, itertools.pairwise(itertools.accumulate(sizes, initial=0)), strict=True):
        weights = [value and _of_channels(value, start, end) for value in convolution.inputs[1:3]]
        part = ops.copied(convolution, [convolution.inputs[0], *weights]).outputs[0]
        parts[old] = ops.followed(part, reversed(activations))
    for value in whole:
        parts[value] = ir.node("Concat", list(parts.values()), {"axis": 1}).outputs[0]
    return parts


def _is_convolved(value: ir.Value) -> bool:
    return any(map(is_convolution, users(value)))


def _producers(value: ir.Value) -> list[ir.Node]:
    """The activations before a value, and the convolution before these."""
    nodes: list[ir.Node] = []
    while len(nodes) <= MAX_STEPS:
        node = value.producer()
        need(not nodes or is_used_once(value), "the activation's operand is used elsewhere", value)
        if node is None or not (is_convolution(node) or _is_activation(node)):
            break
        nodes.append(node)
        if is_convolution(node):
            return nodes
        value = inputs(node, len(node.inputs))[0]
    raise Absent("no convolution comes before", value)


def _is_activation(node: ir.Node) -> bool:
    if is_op(node, "QuickGelu", domain=MICROSOFT):
        return True
    return is_op(node, *ACTIVATIONS) and all(value is None or is_constant(value) for value in node.inputs[1:])


def _of_channels(value: ir.Value, start: int, end: int) -> ir.Value:
    """A constant's numbers for some of the channels."""
    return constant(np.ascontiguousarray(array_of(value)[start:end]), dtype(value))


PARTS = Form("", "MatMul", "one for each part")


class MatmulSplitDecomposition(CpuRule[Match]):
    """``Split(x·[V|W] + [b|c])`` → ``x·V + b``, ``x·W + c``, for more than a few rows.

    One product for several projections writes them side by side, and a Split copies them apart again.

    Exporters write queries, keys and values as one product, and the two projections of a gated layer. Each alone is as
    fast, and nothing is copied. With one row it depends on the processor.
    """

    roots = ("Split",)
    weighs = (PARTS,)
    numerics = Numerics.REORDERED  # with fewer columns, a kernel may sum in another order
    keeps_elementwise = True

    def match(self, root: ir.Node) -> Match:
        """Parts of the columns of a product with a constant matrix, which nothing else reads."""
        value = inputs(root, len(root.inputs))[0]
        need(ops.Split(root).is_last, "it splits no columns", root)
        need_float32(value)
        sizes = [dims(part)[-1] for part in root.outputs]
        widths = [size for size in sizes if isinstance(size, int) and size > 0]
        need(len(widths) == len(sizes) > 1, "the parts' sizes are not known", root)
        last = value.producer()
        if last is None or last.graph is not value.graph or not is_used_once(value):
            raise Refusal("no product with a constant matrix is above it alone", value)
        layer = product(last)
        weight, bias = layer.weight, layer.bias
        need(layer.node.graph is root.graph, "no product with a constant matrix is above it alone", value)
        row = bias is None or (is_constant(bias) and dims(bias) == (sum(widths),))
        need(row, "what is added is no row", last)
        need(use_count(weight) == 1 and not weight.is_graph_output(), "the matrix is used elsewhere", weight)
        need(tensor_of(weight).nbytes <= MAX_BYTES, "the matrix is large", weight)
        need(not is_asked_for(root, MERGED), "the parts are to be one product (--force-forms)", root, code=Code.OPTION)
        check_faster(root, PARTS, rows=dims(layer.x)[:-1])
        bounds = itertools.pairwise(itertools.accumulate(widths, initial=0))
        parts = {part: slice(*ends) for part, ends in zip(root.outputs, bounds, strict=True) if is_used(part)}
        nodes = (*layer.nodes, root)
        return Match(nodes, lambda: {y: _part(layer, columns) for y, columns in parts.items()}, tuple(parts))


def _part(layer: Linear, columns: slice) -> ir.Value:
    part = ir.node("MatMul", [layer.x, constant(np.ascontiguousarray(layer.matrix[:, columns]))]).outputs[0]
    return part if layer.bias is None else ir.node("Add", [part, constant(array_of(layer.bias)[columns])]).outputs[0]
