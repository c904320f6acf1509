"""A Fourier transform of a fixed length is a product with a matrix of sines and cosines.

ONNX Runtime has a fast kernel for lengths that are powers of two. For others (FNet's 768 columns) it makes several
longer transforms of one, which takes longer than the product of matrices does, and loses digits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    need_float32,
    opset,
    optional,
    rank,
    splat,
    static_dims,
    tensor_of,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM: Final = Form("", "MatMul", "in place of DFT")

MAX_NUMBERS: Final = 4096
"""Numbers along the axis, at most, however fast: of so many complex ones the matrix has 256 MB."""

_AXIS_IS_AN_INPUT_FROM: Final = 20


class Found(Struct, frozen=True):
    """A transform along the last axis of numbers.

    Attributes:
        nodes: The DFT.
        x: What is transformed.
        parts: 1 where its numbers are real, 2 where they have an imaginary part.
        length: How many there are.
        matrix: Sines and cosines; of real numbers for the first half of the frequencies, the others mirror them.
        shared: The same matrix, where another transform has it already.
        is_mirrored: Whether the other half is asked for.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    parts: int
    length: int
    matrix: np.ndarray
    shared: ir.Value | None
    is_mirrored: bool


class DftMatmulConversion(RewriteRule[Found]):
    """``DFT(x)`` → ``MatMul(x, sines and cosines)`` for fixed lengths that are no powers of two.

    Not for long ones: work and matrix grow with the square.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("DFT",)
    opsets = (17, NEWEST_OPSET)
    numerics = Numerics.FINITE  # an infinity spreads further in a longer transform
    lookback = 2
    providers = (CPU,)
    weighs = (FORM,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """A known length, for which there is no fast kernel."""
        (x,) = inputs(root, 1)
        need_float32(x, "the gain was measured")
        size = rank(x)
        need(_along(root, size) == size - 2, "it is not along the last axis of numbers", root)
        length, parts = dims(x)[-2:]
        if not isinstance(length, int) or not isinstance(parts, int):
            raise Refusal("the length is not known", x)
        asked = optional(root, 1)
        need(asked is None or _number(asked) == length, "it is cut or padded", root)
        need(length & (length - 1) != 0, "there is a fast kernel for powers of two", root)
        is_inverse, onesided = (bool(attribute(root, name, 0)) for name in ("inverse", "onesided"))
        if parts == 2 and (real := _real(x)) is not None:
            x, parts = real, 1
        need(not onesided or (parts == 1 and not is_inverse), "half of the frequencies is asked for otherwise", root)
        need(length <= MAX_NUMBERS and parts in (1, 2), "its matrix would be large", root)
        check_faster(root, FORM, columns=length, components=parts)
        matrix = _matrix(length, parts, is_inverse=is_inverse)
        return Found((root,), x, parts, length, matrix, _known(matrix, root), parts == 1 and not onesided)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the product, its numbers side by side."""
        ahead = [0] * (rank(found.x) - 2)
        rows, columns = found.matrix.shape
        flat = ir.node("Reshape", [found.x, constant([*ahead, rows])]).outputs[0]
        matrix = found.shared or constant(found.matrix, FLOAT)
        product = ir.node("MatMul", [flat, matrix]).outputs[0]
        half = ir.node("Reshape", [product, constant([*ahead, columns // 2, 2])]).outputs[0]
        return _mirrored(half, found.length, len(ahead)) if found.is_mirrored else half


def _along(node: ir.Node, size: int) -> int:
    """The axis, counted from the front."""
    if opset(node) < _AXIS_IS_AN_INPUT_FROM:
        return ops.OneAxis(node).axis_of(size)
    named = optional(node, 2)
    return (-2 if named is None else _number(named)) % size


def _number(value: ir.Value) -> int:
    return int(splat(value))


def _real(x: ir.Value) -> ir.Value | None:
    """The real part of numbers that zeros were put beside."""
    node = x.producer()
    if node is None or not is_op(node, "Concat") or len(node.inputs) != 2:
        return None
    first, second = inputs(node, 2)
    alike = all(isinstance(dims(each)[-1], int) and dims(each)[-1] == 1 for each in (first, second))
    if not alike or not ops.Concat(node).is_last:
        return None
    try:
        return first if _zeros(second) else None
    except Refusal:
        return None


def _zeros(value: ir.Value) -> bool:
    """Whether all elements are 0."""
    node = value.producer()
    return bool(splat(inputs(node, 1)[0] if node is not None and is_op(node, "Expand") else value) == 0)


def _matrix(length: int, parts: int, *, is_inverse: bool) -> np.ndarray:
    """What each part of a number adds to each part of a frequency: rows by columns, parts side by side."""
    count = length // 2 + 1 if parts == 1 else length
    turns = np.outer(np.arange(length), np.arange(count)) % length
    angles = 2 * np.pi * turns / length
    cosines, sines = np.cos(angles), np.sin(angles) if is_inverse else -np.sin(angles)
    of_real = np.stack([cosines, sines], axis=-1)
    of_imaginary = np.stack([-sines, cosines], axis=-1)
    every = np.stack([of_real, of_imaginary][:parts], axis=1)
    matrix: np.ndarray = every.reshape(length * parts, 2 * count)
    return (matrix / length if is_inverse else matrix).astype(np.float32)


def _known(matrix: np.ndarray, root: ir.Node) -> ir.Value | None:
    """A constant of the graph that is this matrix: each layer of a model asks for the same."""
    if not isinstance(root.graph, ir.Graph):
        return None
    for value in root.graph.initializers.values():
        alike = is_constant(value) and tensor_of(value).dtype == FLOAT and static_dims(value) == matrix.shape
        if alike and np.array_equal(array_of(value), matrix):
            return value
    return None


def _mirrored(half: ir.Value, length: int, place: int) -> ir.Value:
    """All frequencies of real numbers: the second half is the first in reverse, conjugated, without what is its own."""
    bounds = [constant([at]) for at in ((length - 1) // 2, 0, place, -1)]
    back = ir.node("Slice", [half, *bounds]).outputs[0]
    conjugated = ir.node("Mul", [back, constant(np.array([1, -1], np.float32))]).outputs[0]
    return ir.node("Concat", [half, conjugated], {"axis": place}).outputs[0]
