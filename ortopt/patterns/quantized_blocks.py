"""Constant matrices that are stored as integers of few bits in blocks, each with a scale."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import (
    Refusal,
    array_of,
    inputs,
    is_op,
    is_used_once,
    need,
    need_float32,
    optional,
    plain_attributes,
)
from ortopt.patterns.quantization import RANGES, dequantizer, scaling

MIN_BLOCK = 16


class Blocks(Struct, frozen=True):
    """A matrix in blocks along its rows or columns.

    Attributes:
        nodes: The nodes that nothing else reads: what dequantizes it, perhaps a Transpose behind.
        integers: Its integers as the model has them.
        scales: Its scales.
        zero_points: Its zero points, in the shape of the scales.
        axis: The axis that is cut into blocks, where `integers` are transposed if `turned`.
        turned: Whether what reads it gets the transposed matrix.
        size: The size of a block.
        bits: The width of an integer.
        is_signed: Whether the integers have signs.
    """

    nodes: tuple[ir.Node, ...]
    integers: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray
    axis: int
    turned: bool
    size: int
    bits: int
    is_signed: bool

    @property
    def is_by_columns(self) -> bool:
        """Whether what reads it as [rows, columns] finds each block within a column."""
        return self.axis == (1 if self.turned else 0)

    def packed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Integers, scales and zero points of each column, block by block, as bytes without signs, low bits first."""
        columns = (lambda content: content) if self.axis == 1 else np.transpose
        shift = 2 ** (self.bits - 1) if self.is_signed else 0
        numbers = (columns(self.integers).astype(np.int16) + shift).astype(np.uint8)
        zeros = (columns(self.zero_points).astype(np.int16) + shift).astype(np.uint8)
        count, length = numbers.shape
        whole = _bytes(numbers, self.bits).reshape(count, length // self.size, -1)
        return whole, np.ascontiguousarray(columns(self.scales)).reshape(-1), _bytes(zeros, self.bits).reshape(-1)


def _bytes(rows: np.ndarray, bits: int) -> np.ndarray:
    """Rows of integers below 2^bits as bytes; a row begins with a byte."""
    if bits == 8:
        return np.ascontiguousarray(rows)
    if rows.shape[-1] % 2:
        rows = np.pad(rows, ((0, 0), (0, 1)))
    return np.asarray(rows[:, ::2] | (rows[:, 1::2] << 4), np.uint8)


def blocks(value: ir.Value) -> Blocks:
    """The matrix in blocks that a value is dequantized from, for what reads it alone.

    Args:
        value: The floats.

    Raises:
        Refusal: If it is no such matrix, or others read it, with the reason.
    """
    nodes: list[ir.Node] = []
    turn = value.producer()
    turned = is_op(turn, "Transpose")
    if turn is not None and turned:
        nodes.append(turn)
        value = inputs(turn, 1)[0]
    node = dequantizer(value)
    plain_attributes(node)
    nodes.append(node)
    for each in nodes:
        alone = is_used_once(each.outputs[0]) and not each.outputs[0].is_graph_output()
        need(alone, "others read the floats of the weight, which would be stored twice", each)
    mapping = scaling(node)
    need(mapping.block > 0, "the weight has no blocks of scales", node)
    need_float32(inputs(node, 2)[1])
    need(mapping.integers.bitwidth in (4, 8), "no kernel has integers of so many bits", node)
    power = mapping.block >= MIN_BLOCK and mapping.block & (mapping.block - 1) == 0
    need(power, "the kernel wants blocks of 16, 32, 64 …", node)
    content = array_of(inputs(node, 1)[0])
    if content.ndim != 2:
        raise Refusal("the weight is no matrix", node)
    need(content.shape[mapping.axis] % mapping.block == 0, "the last block is not whole", node)
    zero_point = optional(node, 2)
    zeros = np.zeros(mapping.scale.shape, np.int64) if zero_point is None else mapping.zero_point
    is_signed = RANGES[mapping.integers][0] < 0
    bits = mapping.integers.bitwidth
    return Blocks(tuple(nodes), content, mapping.scale, zeros, mapping.axis, turned, mapping.block, bits, is_signed)
