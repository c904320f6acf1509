"""Tensors of floats whose data are another tensor's in another dtype, converted piece by piece when written."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.serialization.mapped_tensors import forget

_PIECE: Final = 1 << 20
"""Elements that are converted at a time: what is in memory of a tensor that is written."""


class ConvertedTensor(ir.LazyTensor):
    """The elements of a tensor of floats, rounded to another dtype; converted anew whenever they are read.

    Args:
        source: The tensor.
        dtype: The dtype that its elements are rounded to.
        largest: Finite elements beyond it become it; None leaves them to the rounding, which makes them infinite.

    Attributes:
        source: The tensor.
        largest: The bound.
    """

    __slots__ = ("largest", "source")

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType, largest: float | None = None) -> None:
        shape = ir.Shape(source.shape.numpy())
        super().__init__(self._converted, dtype, shape, name=source.name, doc_string=source.doc_string)
        self.source = source
        self.largest = largest

    def _converted(self) -> ir.TensorProtocol:
        return ir.Tensor(self._rounded(np.asarray(self.source.numpy())), dtype=self.dtype, name=self.name)

    def _rounded(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.largest is not None:
            limit = np.float32(self.largest)
            numbers = np.where(np.isfinite(numbers), np.clip(numbers, -limit, limit), numbers)
        with np.errstate(over="ignore"):
            return numbers.astype(self.dtype.numpy())

    def write_slice(self, file: Any, start: int, length: int) -> None:
        """Write some of the bytes to a binary file, piece by piece.

        Args:
            file: Anything with ``write``.
            start: The first byte, a multiple of the size of an element.
            length: How many bytes, a multiple likewise.
        """
        size = self.dtype.bitwidth // 8
        end = (start + length) // size
        for first in range(start // size, end, _PIECE):
            piece = self.piece(first, min(first + _PIECE, end))
            file.write(piece.astype(piece.dtype.newbyteorder("<"), copy=False).tobytes())
        forget(self._first)

    def piece(self, start: int, end: int) -> np.ndarray[Any, Any]:
        """Some of the elements, of which no others are converted.

        Args:
            start: The first one's place, counted through the tensor.
            end: The place behind the last one.
        """
        if isinstance(self.source, ConvertedTensor):
            return self._rounded(self.source.piece(start, end))
        return self._rounded(np.asarray(self.source.numpy()).reshape(-1)[start:end])

    @property
    def _first(self) -> ir.TensorProtocol:
        """What it all comes from."""
        return self.source._first if isinstance(self.source, ConvertedTensor) else self.source
