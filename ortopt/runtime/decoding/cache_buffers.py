"""The buffers of one decode loop: what the cache holds lies in front, room for more behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortopt.errors import UsageError
from ortopt.terminal_text import quoted

if TYPE_CHECKING:
    from ortopt.runtime.decoding.shared_buffers import SharedBuffer


class CacheBuffers:
    """One array for each past and its present, which grow along their first axis.

    Args:
        buffers: What there is to know about each.
        capacity: How many positions there is room for at first; what does not fit doubles it.

    Attributes:
        capacity: How many positions there is room for.
        length: How many positions are held.
        arrays: The arrays; none before the batch is known.
        shapes: The shapes of the pasts in the model, lengths apart.
    """

    def __init__(self, buffers: Sequence[SharedBuffer], capacity: int) -> None:
        if capacity < 1:
            raise UsageError(f"capacity must be at least 1, not {capacity}")
        self._buffers = buffers
        self.capacity = capacity
        self.length = 0
        self.arrays: list[Any] = []
        self.shapes: list[list[int]] = []
        others = [dim for buffer in buffers for axis, dim in enumerate(buffer.dims) if axis != buffer.axis]
        self._symbols = sorted({dim for dim in others if isinstance(dim, str)})
        self._prepared: tuple[int | None, ...] | None = None  # the sizes of these symbols

    def prepare(self, known: Mapping[str, int], length: int) -> None:
        """Have room for `length` positions, of a batch.

        Args:
            known: The sizes of symbols.
            length: How many positions.

        Raises:
            UsageError: The cache holds another batch, or the batch cannot be told.
        """
        key = tuple([known.get(symbol) for symbol in self._symbols])
        if key == self._prepared and length <= self.capacity:
            return
        sizes = [self._sizes(number, known) for number in range(len(self._buffers))]
        fits = bool(self.arrays) and all(a.shape[1:] == each for a, each in zip(self.arrays, sizes, strict=True))
        if self.length and not fits:
            raise UsageError("the sequences of the cache are others than those of the inputs: reset it, or reorder it")
        if not fits or length > self.capacity:
            self._make(sizes, length)
        self._prepared = key

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on; see `DecodeLoop.crop`."""
        if not 0 <= length <= self.length:
            raise UsageError(f"the cache holds {self.length} positions: it cannot be cropped to {length}")
        self.length = length

    def reorder(self, indices: Sequence[int], axis: int) -> None:
        """Hold other sequences; see `DecodeLoop.reorder`."""
        self._check()
        wanted = np.asarray(indices, np.int64)
        for buffer, array in zip(self._buffers, self.arrays, strict=True):
            if axis == buffer.axis or not 0 <= axis < array.ndim:
                raise UsageError(f"axis {axis} of {quoted(buffer.past)} is not that of the sequences")
            size = array.shape[axis + (axis < buffer.axis)]
            if wanted.ndim != 1 or np.any(wanted < -size) or np.any(wanted >= size):
                raise UsageError(f"the cache holds {size} sequences: there are no {list(indices)}")
        for number, (buffer, array) in enumerate(zip(self._buffers, self.arrays, strict=True)):
            taken = np.take(array[: self.length], wanted, axis=axis + (axis < buffer.axis))
            if taken.shape[1:] != array.shape[1:]:
                self.arrays[number] = np.empty((len(array), *taken.shape[1:]), array.dtype)
            self.arrays[number][: self.length] = taken
        self._changed()

    def past(self) -> dict[str, Any]:
        """A copy, as the model's pasts, by name."""
        self._check()
        return {
            buffer.past: np.ascontiguousarray(np.moveaxis(array[: self.length], 0, buffer.axis))
            for buffer, array in zip(self._buffers, self.arrays, strict=True)
        }

    def load(self, past: Mapping[str, Any]) -> None:
        """Hold a copy of pasts; see `DecodeLoop.load`."""
        arrays = [self._turned(buffer, past) for buffer in self._buffers]
        lengths = {len(array) for array in arrays}
        if len(lengths) != 1:
            raise UsageError(f"the pasts have several lengths: {', '.join(map(str, sorted(lengths)))}")
        self.length = 0
        self._make([array.shape[1:] for array in arrays], length := lengths.pop())
        for own, array in zip(self.arrays, arrays, strict=True):
            own[:length] = array
        self.length = length

    def _turned(self, buffer: SharedBuffer, past: Mapping[str, Any]) -> Any:
        """A past with the axis along which it grows first."""
        if buffer.past not in past:
            raise UsageError(f"{quoted(buffer.past)} is missing")
        array = np.asarray(past[buffer.past])
        if array.dtype != buffer.dtype.numpy() or array.ndim != len(buffer.dims):
            raise UsageError(f"{quoted(buffer.past)} has another dtype or rank than the model's")
        for axis, (dim, size) in enumerate(zip(buffer.dims, array.shape, strict=True)):
            if axis != buffer.axis and isinstance(dim, int) and dim != size:
                raise UsageError(f"axis {axis} of {quoted(buffer.past)} has {size} elements, not {dim}")
        return np.moveaxis(array, buffer.axis, 0)

    def _make(self, sizes: Sequence[tuple[int, ...]], length: int) -> None:
        """New arrays, with room for `length` positions and what is held."""
        while self.capacity < length:
            self.capacity *= 2
        dtypes = [buffer.dtype.numpy() for buffer in self._buffers]
        made = [np.empty((self.capacity, *each), dtype) for each, dtype in zip(sizes, dtypes, strict=True)]
        if self.length:
            for new, old in zip(made, self.arrays, strict=True):
                new[: self.length] = old[: self.length]
        self.arrays = made
        self._changed()

    def _changed(self) -> None:
        """Note the shapes of new arrays."""
        self._prepared = None
        self.shapes = [list(array.shape[1:]) for array in self.arrays]
        for buffer, shape in zip(self._buffers, self.shapes, strict=True):
            shape.insert(buffer.axis, 0)

    def _sizes(self, number: int, known: Mapping[str, int]) -> tuple[int, ...]:
        """The sizes of a buffer behind the first, as the inputs have them; else as they were."""
        buffer = self._buffers[number]
        sizes: list[int] = []
        for axis, dim in enumerate(buffer.dims):
            if axis == buffer.axis:
                continue
            size = dim if isinstance(dim, int) else known.get(dim or "")
            if size is None and self.length:
                size = self.arrays[number].shape[len(sizes) + 1]
            if size is None:
                raise UsageError(f"the inputs' sizes do not tell axis {axis} of {quoted(buffer.past)}: load a past")
            sizes.append(size)
        return tuple(sizes)

    def _check(self) -> None:
        if not self.arrays:
            raise UsageError("the cache holds nothing yet")
