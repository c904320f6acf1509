"""Ops that only move values can move the integers: a quarter of the bytes, and quantized kernels stay together."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops, semantics
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Absent,
    attribute,
    inputs,
    is_constant,
    need,
    plain_attributes,
    rank,
    scalar,
)
from ortopt.patterns.quantization import dequantizer, has_one_scale, is_quantizer, need_no_other_sign, need_no_pairs
from ortopt.patterns.quantized_kernels import QUANTIZERS
from ortopt.rule import Replacement, RewriteRule
from ortopt.semantics.op_traits import PERMUTING, REPEATING, SELECTING

PERMUTED = tuple(sorted(PERMUTING - {"Identity"}))  # which goes by itself
"""Ops whose result has the elements of the input, each once."""

SELECTED = tuple(sorted((SELECTING - {"Split"}) | {"MaxPool"}))  # a Split has several results
"""Ops whose result has some of them: behind them there are fewer to dequantize, as a rule."""

REPEATED = tuple(sorted(REPEATING))
"""Ops whose result has them again and again: before them there are fewer to quantize, as a rule."""


class Exchange(Struct, frozen=True):
    """The two nodes in their present order, and the axis of the scales when they have changed places.

    The axis is None where there is one scale; `turned` are the axes of blocks of scales, if they move as the data do.
    """

    nodes: tuple[ir.Node, ir.Node]
    axis: int | None = None
    turned: tuple[int, ...] | None = None


class QdqPropagation(RewriteRule[Exchange]):
    """``op(DequantizeLinear(q))`` → ``DequantizeLinear(op(q))``; ``QuantizeLinear(op(x))`` → ``op(QuantizeLinear(x))``.

    The result is exact, because the op returns elements of its input without looking at them. A MaxPool compares them,
    so it is exchanged only with a DequantizeLinear whose scale keeps their order. Every rewrite turns an op on floats
    into an op on integers, never the other way round. (ONNX Runtime leaves the op where it is, and puts a pair around
    it.)

    QuantizeLinear and DequantizeLinear that follow one another stay together where somebody looks for such pairs: other
    runtimes do (``--target onnx``), and ONNX Runtime itself does before it makes signed integers unsigned, which it
    needs on most processors. With ``--march native`` they are unsigned already.
    """

    after = ("qdq_final_cleanup", "reshape_merging", "transpose_merging")
    roots = (*PERMUTED, *SELECTED, *QUANTIZERS)
    needs = ("QuantizeLinear", "DequantizeLinear", "com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear")

    def match(self, root: ir.Node) -> Exchange:
        """A value-keeping op before a QuantizeLinear, or behind a DequantizeLinear."""
        found = _before_quantizing(root) if is_quantizer(root) else _behind_dequantizing(root)
        _check_pair_unneeded(*found.nodes)
        if found.axis is None:
            _check_single(found.nodes[1] if is_quantizer(found.nodes[1]) else found.nodes[0])
        return found

    def rewrite(self, found: Exchange) -> Replacement:
        """Let the two change places."""
        first, second = found.nodes
        (source,) = inputs(first, 1)
        moved, scaling = (first, second) if is_quantizer(second) else (second, first)
        parameters = [value for value in scaling.inputs[1:] if value is not None]
        if found.axis is None:
            parameters = [_without_axes(value) for value in parameters]
        if found.turned is not None:
            parameters = [ir.node("Transpose", [value], {"perm": found.turned}).outputs[0] for value in parameters]
        if is_quantizer(second):
            inner = ops.copied(scaling, [source, *parameters], axis=found.axis)
            return ops.copied(moved, [inner.outputs[0], *moved.inputs[1:]])
        inner = ops.copied(moved, [source, *moved.inputs[1:]])
        return ops.copied(scaling, [inner.outputs[0], *parameters], axis=found.axis)


def _before_quantizing(root: ir.Node) -> Exchange:
    (numbers,) = inputs(root, 1)
    op = numbers.producer()
    if op is None or op.domain != "" or op.op_type not in PERMUTED + REPEATED:
        raise Absent("no op that keeps values comes before", numbers)
    need(has_one_scale(root), "there are several scales", root)
    _check_axis_free(root)
    need(not is_constant(op.inputs[0]), "it will be folded", op)
    plain_attributes(root)
    plain_attributes(op)
    return Exchange((op, root))


def _behind_dequantizing(root: ir.Node) -> Exchange:
    numbers = inputs(root, 1)[0]
    dequantize = dequantizer(numbers)
    plain_attributes(root)
    plain_attributes(dequantize)
    if root.op_type == "MaxPool":
        _check_order(root, dequantize)
    if has_one_scale(dequantize):
        _check_axis_free(dequantize)
        return Exchange((dequantize, root))
    need(root.op_type in _AXES, "there are several scales, which it would scatter", dequantize)
    _, scale = inputs(dequantize, 2)
    goes_to = _AXES[root.op_type](root, ops.OneAxis(dequantize).axis)
    if not attribute(dequantize, "block_size", 0):
        need(rank(scale) == 1, "the scales are of another rank", scale)
        return Exchange((dequantize, root), goes_to)
    need(root.op_type == "Transpose", "there are blocks of scales, which it would scatter", dequantize)
    constants = all(is_constant(value) for value in dequantize.inputs if value is not None)
    need(constants, "the blocks of scales would be turned in every run", dequantize)
    return Exchange((dequantize, root), goes_to, ops.Transpose(root).order)


def _check_pair_unneeded(first: ir.Node, second: ir.Node) -> None:
    """Refuse where whoever runs the model looks for a QuantizeLinear right before a DequantizeLinear."""
    scaling, op = (second, first) if is_quantizer(second) else (first, second)
    operands = (inputs(first, 1)[0], *op.inputs[1:])
    if all(value is None or is_constant(value) for value in operands):
        return  # it will be folded
    need_no_pairs(scaling)
    integers = scaling.outputs[0] if is_quantizer(scaling) else operands[0]
    if integers is not None and is_quantizer(integers.producer()):
        need_no_other_sign(scaling, integers.dtype, "a pair")


def _check_order(root: ir.Node, dequantize: ir.Node) -> None:
    """Refuse unless the largest integer is the largest number, and no window lies in the padding."""
    need(has_one_scale(dequantize), "there are several scales", dequantize)
    integers, scale = inputs(dequantize, 2)
    need(integers.dtype in (ir.DataType.INT8, ir.DataType.UINT8), "no kernel of MaxPool takes the integers", integers)
    factor = scalar(scale)
    need(np.isfinite(factor) and factor > 0, "the scale does not keep the order", scale)
    spare = root.outputs[1:]
    need(not any(value.uses() or value.is_graph_output() for value in spare), "the indices are used", root)
    pool = ops.Pool(root)
    need(pool.auto_pad in ("NOTSET", "VALID"), "the padding depends on the size", root)
    need(not pool.rounds_up, "a window may begin in the padding", root)
    need(set(pool.dilations) == {1}, "a window may skip over what is there", root)
    within = all(pad < size for pad, size in zip(pool.stated_pads, pool.kernel * 2, strict=False))
    need(within, "a window may lie in the padding", root)


def _through_transpose(root: ir.Node, axis: int) -> int:
    return ops.Transpose(root).order.index(axis)


def _through_gather(root: ir.Node, axis: int) -> int:
    _, indices = inputs(root, 2)
    gathered = ops.Gather(root).axis
    need(gathered != axis, "it gathers along the scales", root)
    return axis + rank(indices) - 1 if gathered < axis else axis


def _through_slice(root: ir.Node, axis: int) -> int:
    need(all(sliced != axis for sliced in ops.Slice(root).axes), "it slices along the scales", root)
    return axis


def _through_unsqueeze(root: ir.Node, axis: int) -> int:
    """Where an axis is found again among those of the result; dimensions of 1 come and go around it."""
    axes = ops.Axes(root).axes
    if root.op_type == "Unsqueeze":
        return [index for index in range(len(axes) + axis + 1) if index not in axes][axis]
    need(axis not in axes, "the axis of the scales is dropped", root)
    return axis - sum(other < axis for other in axes)


_AXES: dict[str, Callable[[ir.Node, int], int]] = {
    "Gather": _through_gather,
    "Slice": _through_slice,
    "Squeeze": _through_unsqueeze,
    "Transpose": _through_transpose,
    "Unsqueeze": _through_unsqueeze,
}
"""Where the axis of the scales is behind an op, for those that leave the scales together."""


def _check_axis_free(node: ir.Node) -> None:
    """Refuse one computed scale of rank 1: its axis must exist."""
    for value in node.inputs[1:]:
        need(value is None or is_constant(value) or rank(value) == 0, "a computed scale has an axis", value)


def _check_single(scaling: ir.Node) -> None:
    """Refuse one scale with several zero points, or none: ONNX Runtime takes such a node, and does not run it."""
    for value in scaling.inputs[1:]:
        tensor = None if value is None else semantics.constant_tensor(value)
        need(tensor is None or tensor.size == 1, "scale and zero point do not fit", value)


def _without_axes(value: ir.Value) -> ir.Value:
    """One scale or zero point, of rank 0 if it is a constant: an axis attribute may lie outside of other ranks."""
    tensor = semantics.constant_tensor(value)
    if tensor is None or len(tensor.shape) == 0:
        return value
    return constant(np.asarray(tensor.numpy()).reshape(()), tensor.dtype)
