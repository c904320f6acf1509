"""One linear op: what Conv, ConvTranspose, Gemm and MatMul with constant weights have in common."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_digits, need_near, need_no_larger, need_scaled_near
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    operand_from,
    optional,
    rank,
    same_dim,
    tensor_of,
)
from ortopt.linear.channels import Affine, Effect, of_axis, vector
from ortopt.linear.weights import MAX_WORK, Array, need_finite, rounded, row_product, times

CONVOLUTIONS = ("Conv", "ConvTranspose")


class Linear(Struct, frozen=True):
    """``alpha * weight · x + beta * bias``: what is called channels are the columns of a matrix.

    Attributes:
        node: The Conv, ConvTranspose, Gemm or MatMul.
        x: What it is applied to.
        weight: Its weights, a constant of floats.
        bias: What is added to each channel.
        group: Into how many groups the channels are divided.
        outputs_first: Whether the first axis of the weights is that of the result's channels, not of the input's.
        alpha: What the product is multiplied by.
        beta: What the bias is multiplied by.
        total: The Add of a MatMul's bias.
    """

    node: ir.Node
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None = None
    group: int = 1
    outputs_first: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    total: ir.Node | None = None

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that compute it."""
        return (self.node,) if self.total is None else (self.node, self.total)

    @property
    def kind(self) -> ir.DataType:
        """The element type."""
        return tensor_of(self.weight).dtype

    @property
    def inputs(self) -> int:
        """The number of channels of the input."""
        shape = tensor_of(self.weight).shape.numpy()
        return shape[1] * self.group if self.outputs_first else shape[0]

    @property
    def outputs(self) -> int:
        """The number of channels of the result."""
        shape = tensor_of(self.weight).shape.numpy()
        return shape[0] if self.outputs_first else shape[1] * self.group

    @property
    def rank(self) -> int:
        """The rank of the input and of the result.

        Raises:
            Refusal: If it is not known.
        """
        return rank(self.x) if self.node.op_type == "MatMul" else len(tensor_of(self.weight).shape)

    @property
    def axis(self) -> int:
        """The axis of the channels in the input and in the result."""
        return 1 if self.node.op_type in CONVOLUTIONS else self.rank - 1

    @property
    def matrix(self) -> Array:
        """The weights of a Gemm or MatMul, or of a convolution of single points: [inputs, outputs]."""
        content = array_of(self.weight)
        content = content.reshape(content.shape[:2])
        return content.T if self.outputs_first else content

    def summand(self) -> Array:
        """What is added to each channel of the result, in float64.

        Raises:
            Refusal: If that is no constant, or not one number a channel.
        """
        if self.bias is None:
            return np.zeros(self.outputs)
        need(is_constant(self.bias), "the bias is not a constant", self.bias)
        if self.node.op_type in CONVOLUTIONS:
            return vector(self.bias, self.outputs)
        return of_axis(self.bias, self.outputs, self.rank, self.axis) * float(np.float32(self.beta))

    def gain(self) -> Array:
        """The largest magnitude of each channel of the result, without bias, for inputs of magnitude 1."""
        return self._magnitudes(of_outputs=True)

    def reach(self) -> Array:
        """The sum of the magnitudes of all that comes of each channel of the input, if that has magnitude 1."""
        return self._magnitudes(of_outputs=False)

    def image(self, row: Array) -> Array:
        """What comes of an input whose channels have the same number at each position, without padding or bias.

        Not for a ConvTranspose, which gives another number at each position.

        Args:
            row: The numbers.
        """
        if self.node.op_type not in CONVOLUTIONS:
            return row_product(row, self.matrix) * self.alpha
        products = self._parts(array_of(self.weight).astype(np.float64) * self.beside(row, of_outputs=False))
        return np.asarray(products.sum(axis=(2, 3))).reshape(self.outputs)

    def bias_with(self, row: Array) -> Array:
        """The bias, as the op has it, with what comes of a row that is added to each of the input (see `ending_in`).

        Args:
            row: The row, one number for each column.

        Raises:
            Refusal: If a number is not finite in the bias' type.
        """
        assert self.bias is not None
        with np.errstate(over="ignore", invalid="ignore"):
            bias = array_of(self.bias) + self.alpha / self.beta * row_product(row, self.matrix)
        return rounded(bias, self.kind, self.bias)

    def beside(self, numbers: Array, *, of_outputs: bool) -> Array:
        """Numbers of channels in a shape that broadcasts to the weights.

        Args:
            numbers: One for each channel.
            of_outputs: Whether they are the result's channels, or the input's.
        """
        first, second, *kernel = tensor_of(self.weight).shape.numpy()
        size = first // self.group
        of_first = of_outputs == self.outputs_first
        parts = numbers.reshape((self.group, size, 1) if of_first else (self.group, 1, second))
        return np.broadcast_to(parts, (self.group, size, second)).reshape(first, second, *(1 for _ in kernel))

    def effect_of(self, above: Affine) -> Effect:
        """What a node before the op does to each channel of its input.

        Args:
            above: The node.

        Raises:
            Refusal: If the number of channels is not fixed, or for a reason of `Affine.effect`.
        """
        shape = dims(above.x)
        need(not is_constant(above.x), "it will be folded", above.x)
        need(not ops.Gemm(self.node).transposes_a, "a linear layer is of columns", self.node)
        fixed = len(shape) == self.rank > 1 and same_dim(shape[self.axis], self.inputs)
        need(fixed, "the number of channels is not fixed", above.x)
        effect = above.effect(self.inputs, self.rank, self.axis)
        finite = all(np.isfinite(numbers).all() for numbers in effect if numbers is not None)
        need(finite, "a number is not finite", above.number)
        return effect

    def fold_behind(self, effect: Effect, *after: ir.Node) -> Folded:
        """Fold ``linear(x) * scale + shift`` into weights and bias.

        Args:
            effect: What is done to each channel.
            after: The nodes that go with it.

        Raises:
            Refusal: If the bias is no constant, a number is not finite in the weights' type, or the result before the
                scaling may overflow or vanish long before the folded one.
        """
        scale, shift = effect
        own, weight = self.summand(), None
        with np.errstate(over="ignore", invalid="ignore"):
            bias = own if scale is None else own * scale
            bias = bias if shift is None else bias + shift
        folded = rounded(bias, self.kind, self.node)
        if scale is not None:
            weight = times(array_of(self.weight), self.beside(scale, of_outputs=True))
            need_finite(self.node, scale, weight)
            need_scaled_near(self.gain, scale, self.kind, self.node)
            need_digits(weight, array_of(self.weight), self.kind, self.node)
        need_no_larger(np.abs(own), (1.0, bias, self.gain), self.kind, self.bias)
        return Folded((*self.nodes, *after), self, self.x, weight, folded)

    def fold_before(self, above: Affine, effect: Effect) -> Folded:
        """Fold ``linear(x * scale + shift)`` into weights and bias.

        With a shift the op must have an `image`, and not pad.

        Args:
            above: The node that scales and shifts.
            effect: What it does to each channel.

        Raises:
            Refusal: If the bias is no constant, a number is not finite in the weights' type, or what goes into the op
                may overflow or vanish long before what stays.
        """
        scale, shift = effect
        weight, bias = None, None
        if shift is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                total = self.image(shift) + self.summand()
            bias = rounded(total, self.kind, self.node)
        if scale is not None:
            weight = times(array_of(self.weight), self.beside(scale, of_outputs=False))
            need_finite(self.node, weight)
            need_near(scale, (1.0, self.reach() * np.abs(scale)), self.kind, above.node)
        if shift is not None:  # the scaled value is near to what stays
            need_no_larger(np.abs(shift), (1.0, self.reach if scale is None else scale), self.kind, above.node)
        return Folded((above.node, *self.nodes), self, above.x, weight, bias)

    def then(self, after: Linear) -> tuple[Array, Array | None]:
        """The weights and the bias of two products of matrices, of which this is the first and a MatMul.

        Args:
            after: The second one, or a convolution of single points.

        Raises:
            Refusal: If both together have more weights, it is much work, a number is not finite, or the result between
                them may overflow or vanish long before what stays.
        """
        first, second = self.matrix, after.matrix
        (rows, between), size = first.shape, second.shape[1]
        need(self.kind == after.kind, "the weights differ in type", after.node)
        need(between == second.shape[0] and between > 0, "the weights do not fit one another", after.node)
        need(rows * size <= between * (rows + size), "both weights together are larger", after.node)
        need(rows * between * size <= MAX_WORK, "the weights are large", after.node)
        second = second.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            weight = first.astype(np.float64) @ second
        bias = None if after.bias is None else after.summand()
        if self.bias is not None:
            own = self.summand()
            need_no_larger(np.abs(own), (1.0, np.abs(second).sum(axis=1)), self.kind, self.bias)
            bias = own @ second + (0.0 if bias is None else bias)
        folded = rounded(weight, self.kind, after.node), None if bias is None else rounded(bias, self.kind, after.node)
        need_near(self.gain(), (1.0, np.abs(weight).sum(axis=0).max(initial=0.0)), self.kind, after.node)
        need_digits(weight, first, self.kind, after.node)
        return folded

    def built(self, x: ir.Value, weight: Array | None, bias: Array | None, *, as_gemm: bool = False) -> ir.Node:
        """Build it anew.

        Args:
            x: What it is applied to.
            weight: New weights; those that it has if None.
            bias: A new bias, with `beta` in it; that which it has if None.
            as_gemm: Whether a MatMul with a bias becomes a Gemm.
        """
        operands = [x, self.weight if weight is None else constant(weight, self.kind)]
        added = self.bias if bias is None else constant(bias, self.kind)
        if added is None:
            return ops.copied(self.node, operands)
        if as_gemm:
            return ir.node("Gemm", [*operands, added])
        if self.node.op_type == "MatMul":
            return ir.node("Add", [ir.node("MatMul", operands).outputs[0], added])
        scaled: dict[str, ops.Setting] = {} if bias is None else {"beta": None}
        return ops.copied(self.node, [*operands, added], **scaled)

    def _parts(self, weights: Array) -> Array:
        """Weights as [groups, first axis within a group, second axis, positions in the kernel]."""
        first, second, *kernel = weights.shape
        return weights.reshape(self.group, first // self.group, second, math.prod(kernel))

    def _magnitudes(self, *, of_outputs: bool) -> Array:
        """The sum of the magnitudes of the weights of each channel."""
        parts = np.abs(self._parts(array_of(self.weight)))
        along = 2 if of_outputs == self.outputs_first else 1
        return np.asarray(parts.sum(axis=(along, 3), dtype=np.float64)).reshape(-1) * abs(self.alpha)


class Folded(Struct, frozen=True):
    """A linear op with new weights and bias, and the nodes that it replaces.

    Attributes:
        nodes: The nodes that go.
        linear: The op.
        x: What the new one is applied to.
        weight: The new weights, or None where they stay.
        bias: The new bias, one element for each channel of the result, or None where it stays.
    """

    nodes: tuple[ir.Node, ...]
    linear: Linear
    x: ir.Value
    weight: Array | None
    bias: Array | None

    def node(self, *, as_gemm: bool = False) -> ir.Node:
        """Build the op; a MatMul with a bias as a Gemm if asked for."""
        return self.linear.built(self.x, self.weight, self.bias, as_gemm=as_gemm)


def linear(node: ir.Node) -> Linear:
    """A Conv, ConvTranspose, Gemm or MatMul with constant weights of floats.

    Raises:
        Refusal: If its weights are others.
    """
    x, weight = inputs(node, 2)
    tensor = tensor_of(weight)
    need(tensor.dtype in FLOATS, "the weights are no floats", weight)
    need(tensor.size > 0, "the weights are empty", weight)
    if node.op_type in CONVOLUTIONS:
        need(len(tensor.shape) >= 2, "the weights have no channels", weight)
        group = ops.Conv(node).group
        need(group > 0 and tensor.shape.numpy()[0] % group == 0, "the groups do not divide the channels", node)
        return Linear(node, x, weight, optional(node, 2), group, node.op_type == "Conv")
    need(len(tensor.shape) == 2, "the weights are no matrix", weight)
    gemm = ops.Gemm(node)
    return Linear(node, x, weight, optional(node, 2), 1, gemm.transposes_b, gemm.alpha, gemm.beta)


def biased(total: ir.Node) -> Linear:
    """A MatMul by a constant matrix of floats whose result goes into nothing but an Add of a bias, or a Sum.

    Raises:
        Refusal: If no such MatMul comes before, or for a reason of `linear`.
    """
    node, bias = operand_from(total, "MatMul")
    need(is_used_once(node.outputs[0]), "MatMul's result is used elsewhere", node.outputs[0])
    product = linear(node)
    return Linear(node, product.x, product.weight, bias, total=total)


def product(last: ir.Node) -> Linear:
    """The MatMul by a constant matrix of floats that a node is, or whose bias it adds.

    Raises:
        Refusal: If it is neither, or for a reason of `linear`.
    """
    need(is_op(last, "MatMul", "Add", "Sum"), "it is no product", last)
    return linear(last) if is_op(last, "MatMul") else biased(last)


def ending_in(last: ir.Node) -> Linear:
    """The Gemm that a node is, or the MatMul whose bias it adds: it makes rows of rows, and adds a constant row.

    Raises:
        Refusal: If it is neither, does something else, or for a reason of `linear`.
    """
    layer = biased(last) if is_op(last, "Add", "Sum") else linear(last)
    need(not ops.Gemm(last).transposes_a, "a linear layer is of columns", last)
    need(layer.bias is not None and is_constant(layer.bias) and layer.beta != 0, "a linear layer has no bias", last)
    need(layer.bias is not None and dims(layer.bias) == (layer.outputs,), "a linear layer's bias is no row", layer.bias)
    return layer
