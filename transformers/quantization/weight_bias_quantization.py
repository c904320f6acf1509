"""A quantized kernel needs its weight and its bias as integers; where they are floats, they can be quantized."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, array_of, attribute, inputs, need, need_float32, opset, optional, plain_attributes
from ortopt.options import Numerics
from ortopt.patterns.quantization import FAITHFUL, dequantizer, has_one_scale, is_dequantizer, is_quantized, scaling
from ortopt.rule import Match, RewriteRule

BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
HIGHEST_WEIGHT = 127
HIGHEST_BIAS = 2**31 - 1
AXIS_OF_SCALES = 13
"""The opset from which on DequantizeLinear may have several scales."""


class Integers(NamedTuple):
    """Scales for a constant: one, or one for each index of an axis."""

    scale: np.ndarray
    axis: int


class WeightBiasQuantization(RewriteRule[Match]):
    """``Quantize(Conv(DequantizeLinear(q), w, b))`` → w as dequantized int8, b as dequantized int32.

    The same holds for ConvTranspose, Gemm and MatMul. It is off by default, because it rounds. A weight changes by at
    most half of its scale, which is the largest magnitude of its channel divided by 127. A bias changes by at most half
    of the product of the scales of activation and weight, and by the rounding of float32. Verification may not accept
    this much; then the pass is left out, and the report says so.
    """

    numerics = Numerics.APPROXIMATE
    after = ("constant_folding", "qdq_propagation", "conv_add_fusion", "matmul_add_fusion")
    roots = ("Conv", "ConvTranspose", "Gemm", "MatMul")

    def match(self, root: ir.Node) -> Match:
        """A dequantized activation, a quantized result, and a constant between them."""
        plain_attributes(root)
        x, w = inputs(root, 2)
        activation = dequantizer(x)
        need(has_one_scale(activation), "the activation has several scales", activation)
        step = scaling(activation)
        need(step.integers in BYTES and step.numbers == FLOAT, "the activation is not of 8 bits", activation)
        need(is_quantized(root.outputs[0]), "the result is not quantized", root)
        bias = optional(root, 2)
        weight_is_float, bias_is_float = _is_float(w), bias is not None and _is_float(bias)
        need(weight_is_float or bias_is_float, "weight and bias are dequantized already", root)
        weight = _of_weight(root, array_of(w)) if weight_is_float else _of_quantized_weight(w)
        bias_integers = _of_bias(root, step.scale, weight, array_of(bias)) if bias_is_float else None
        return Match((root,), lambda: _quantized(root, weight if weight_is_float else None, bias_integers))


def _quantized(root: ir.Node, weight: Integers | None, bias: Integers | None) -> ir.Node:
    """Round, and build the DequantizeLinears of what has scales."""
    operands = list(root.inputs)
    if weight is not None:
        operands[1] = _dequantized(array_of(operands[1]), weight, ir.DataType.INT8)
    if bias is not None:
        operands[2] = _dequantized(array_of(operands[2]), bias, ir.DataType.INT32)
    return ops.copied(root, operands)


def _is_float(value: ir.Value) -> bool:
    return not is_dequantizer(value.producer())


def _of_weight(root: ir.Node, content: np.ndarray) -> Integers:
    """The scales of a symmetric weight: one for each channel that the result has, where the op tells them."""
    need(content.dtype == np.float32 and content.size > 0, "the weight is not of float32", root.inputs[1])
    need(content.ndim >= 2, "the weight has no channels", root.inputs[1])
    axis = _channels(root, content.ndim)
    others = None if axis is None else tuple(index for index in range(content.ndim) if index != axis)
    largest = np.maximum(content.max(axis=others), -content.min(axis=others))
    need(bool(np.isfinite(largest).all()), "the weight is not finite", root.inputs[1])
    scale = np.where(largest == 0, np.float32(1), largest / np.float32(HIGHEST_WEIGHT))
    _check_scale(scale, root)
    return Integers(scale, axis or 0)


def _channels(root: ir.Node, rank: int) -> int | None:
    """The axis of a weight along which each index makes a channel of the result; None for one scale."""
    if opset(root) < AXIS_OF_SCALES or root.op_type == "ConvTranspose":
        return None  # in the weight of a ConvTranspose with groups the channels are on two axes
    if root.op_type == "Conv":
        return 0
    if root.op_type == "Gemm":
        return 0 if ops.Gemm(root).transposes_b else 1
    return 1 if rank == 2 else None


def _of_quantized_weight(weight: ir.Value) -> Integers:
    """The scales of a weight that is quantized already."""
    mapping = scaling(dequantizer(weight))
    need(mapping.block == 0, "the weight has blocks of scales", weight)
    need_float32(weight)
    return Integers(mapping.scale, mapping.axis)


def _of_bias(root: ir.Node, activation: np.ndarray, weight: Integers, content: np.ndarray) -> Integers:
    """The scales of a bias: the step of the sums of products."""
    bias = root.inputs[2]
    with np.errstate(all="ignore"):
        scale = np.asarray(activation * weight.scale)
    need(content.dtype == np.float32 and content.ndim == 1, "the bias is no row of float32", bias)
    if root.op_type == "Gemm":
        plain = attribute(root, "alpha", 1.0) == 1 and attribute(root, "beta", 1.0) == 1
        need(plain, "alpha or beta scales the sums", root)
    if scale.ndim:
        axis = 1 if root.op_type == "ConvTranspose" else _channels(root, 2)
        need(weight.axis == axis, "the scales of the weight are not those of the bias", root)
        need(scale.shape == content.shape, "there are other scales than elements of the bias", bias)
    _check_scale(scale, root)
    need(bool(np.isfinite(content).all()), "the bias is not finite", bias)
    largest = np.abs(np.rint(content / scale.astype(np.float64))).max(initial=0)
    need(bool(largest <= HIGHEST_BIAS), "the bias would overflow int32", bias)
    return Integers(scale, 0)


def _check_scale(scale: np.ndarray, root: ir.Node) -> None:
    _, least, most = FAITHFUL[FLOAT]
    need(bool(np.all((scale >= least) & (scale <= most))), "a scale would be too large or too small", root)


def _dequantized(content: np.ndarray, integers: Integers, dtype: ir.DataType) -> ir.Value:
    scale, axis = integers
    dims = [-1 if index == axis else 1 for index in range(content.ndim)] if scale.ndim else []
    rounded = np.rint(content / scale.reshape(dims).astype(np.float64 if dtype == ir.DataType.INT32 else np.float32))
    if dtype == ir.DataType.INT8:
        rounded = rounded.clip(-HIGHEST_WEIGHT, HIGHEST_WEIGHT)
    operands = [constant(rounded, dtype), constant(scale), constant(np.zeros(scale.shape), dtype)]
    attributes = [ir.AttrInt64("axis", axis)] if scale.ndim else []
    return ir.Node("", "DequantizeLinear", operands, attributes).outputs[0]
