"""Decode loops: calls of a decoder, one after the other, on a cache that stays where it is."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ortopt.errors import UsageError
from ortopt.graph import symbolic
from ortopt.terminal_text import quoted

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.decoding.cached_session import CachedSession
    from ortopt.runtime.decoding.shared_buffers import SharedBuffer
    from ortopt.runtime.instruments.statistics import Counters

DEFAULT_CAPACITY: Final = 256


class DecodeLoop:
    """Calls of a decoder, one after the other: `InferenceSession.decode_loop` makes one.

    The cache is one buffer for each past and its present, and a step writes its new rows there; nothing is copied. A
    session may have any number of loops, each for sequences of its own; threads that use one loop take turns.

    Args:
        session: The session.
        capacity: How many positions the buffers have room for at first; what does not fit doubles them.
        counters: The session's statistics.
    """

    def __init__(self, session: CachedSession, capacity: int, counters: Counters) -> None:
        if capacity < 1:
            raise UsageError(f"capacity must be at least 1, not {capacity}")
        self._session = session
        self._counters = counters
        self._capacity = capacity
        self._length = 0
        self._lock = threading.Lock()
        self._arrays: list[Any] = []  # of the buffers, none before the first step
        self._shapes: list[Any] = []
        self._binding = session.whole.io_binding()
        self._names = [value.name for value in session.get_outputs()]
        self._dtypes = {value.name: value.type for value in session.get_inputs()}
        self._values: dict[str, Any] = {}  # what is bound to inputs, kept alive

    @property
    def length(self) -> int:
        """How many positions the cache holds."""
        return self._length

    @property
    def capacity(self) -> int:
        """How many positions the buffers have room for."""
        return self._capacity

    def step(
        self,
        input_feed: Mapping[str, Any],
        output_names: Sequence[str] | None = None,
        *,
        tokens: int | None = None,
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """Run the model on what the cache holds, and append to it; a step that fails appends nothing.

        Args:
            input_feed: The inputs, pasts apart: arrays, or ``onnxruntime.OrtValue``.
            output_names: The outputs that are wanted, presents apart; None is all.
            tokens: How many positions are appended; None where the inputs' sizes tell.
            run_options: ``onnxruntime.RunOptions``.

        Returns:
            An array for each output.

        Raises:
            ValueError: An input is missing, or is not the model's.
            UsageError: It cannot be told how many positions are appended, or for which batch.
            onnxruntime.capi.onnxruntime_pybind11_state.Fail: And its kin: what ONNX Runtime refuses.
        """
        names = self._names if not output_names else self._checked(list(output_names))
        with self._lock:
            feed = self._fed(input_feed)
            count = self._tokens(feed) if tokens is None else tokens
            if count < 1:
                raise UsageError(f"a step appends at least one position, not {count}")
            self._prepare(feed, self._length + count)
            self._bind(feed, count, names)
            self._session.whole.run_with_iobinding(self._binding, run_options)
            results = dict(zip(self._bound, self._binding.get_outputs(), strict=True))
            self._length += count
            self._counters.called()
            return [results[name].numpy() for name in names]

    def reset(self) -> None:
        """Forget everything: the next step begins new sequences, of any batch. The buffers stay for it."""
        with self._lock:
            self._length = 0

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on.

        Raises:
            UsageError: There are not as many.
        """
        with self._lock:
            if not 0 <= length <= self._length:
                raise UsageError(f"the cache holds {self._length} positions: it cannot be cropped to {length}")
            self._length = length

    def reorder(self, indices: Sequence[int], axis: int = 0) -> None:
        """Let the cache hold other sequences, as beam search chooses them: the i-th is what the indices[i]-th was.

        Args:
            indices: As many as there shall be sequences.
            axis: The axis of the sequences in the model's past.

        Raises:
            IndexError: There is no such sequence.
        """
        with self._lock:
            for number, buffer in enumerate(self._session.buffers):
                if not self._arrays:
                    raise UsageError("the cache holds nothing yet")
                if axis == buffer.axis:
                    raise UsageError(f"{quoted(buffer.past)} grows along axis {axis}: it is not that of the sequences")
                array = self._arrays[number]
                place = axis + 1 if axis < buffer.axis else axis
                taken = np.take(array[: self._length], np.asarray(indices, np.int64), axis=place)
                if taken.shape[1:] != array.shape[1:]:
                    self._arrays[number] = np.empty((len(array), *taken.shape[1:]), array.dtype)
                self._arrays[number][: self._length] = taken
            self._note_shapes()

    def past(self) -> dict[str, Any]:
        """A copy of the cache, as the model's pasts, by their names."""
        with self._lock:
            if not self._arrays:
                raise UsageError("the cache holds nothing yet")
            pairs = zip(self._session.buffers, self._arrays, strict=True)
            return {
                buffer.past: np.ascontiguousarray(np.moveaxis(array[: self._length], 0, buffer.axis))
                for buffer, array in pairs
            }

    def load(self, past: Mapping[str, Any]) -> None:
        """Let the cache hold a copy of pasts, as another model or an earlier loop computed them.

        Args:
            past: An array for each of the model's pasts, by name.

        Raises:
            UsageError: One is missing, or has another dtype, rank or length.
        """
        arrays = []
        for buffer in self._session.buffers:
            if buffer.past not in past:
                raise UsageError(f"{quoted(buffer.past)} is missing")
            array = np.asarray(past[buffer.past])
            if array.dtype != buffer.dtype.numpy() or array.ndim != len(buffer.dims):
                raise UsageError(f"{quoted(buffer.past)} has another dtype or rank than the model's")
            arrays.append(np.moveaxis(array, buffer.axis, 0))
        lengths = {len(array) for array in arrays}
        if len(lengths) != 1:
            raise UsageError(f"the pasts have several lengths: {', '.join(map(str, sorted(lengths)))}")
        with self._lock:
            length = lengths.pop()
            while self._capacity < length:
                self._capacity *= 2
            self._arrays = [np.empty((self._capacity, *array.shape[1:]), array.dtype) for array in arrays]
            for own, array in zip(self._arrays, arrays, strict=True):
                own[:length] = array
            self._length = length
            self._note_shapes()

    def _checked(self, names: list[str]) -> list[str]:
        for name in names:
            if name not in self._names:
                raise ValueError(f"a step returns no {quoted(name)}: it returns {', '.join(map(quoted, self._names))}")
        return names

    def _fed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The feed as OrtValues; everything that the model takes, and nothing else."""
        import onnxruntime

        missing = [name for name in self._dtypes if name not in given]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(given)}).")
        feed = {}
        for name, value in given.items():
            if name not in self._dtypes:
                own = any(name == buffer.past for buffer in self._session.buffers)
                raise ValueError(f"{'the session keeps' if own else 'the model has no input'} {quoted(name)}")
            if isinstance(value, onnxruntime.OrtValue):
                feed[name] = value
            else:
                array = np.ascontiguousarray(value).reshape(np.shape(value))
                feed[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        return feed

    def _tokens(self, feed: Mapping[str, Any]) -> int:
        """How many positions a step appends, from the sizes of its inputs."""
        sizes = self._sizes(feed)
        for buffer in self._session.buffers:
            past = buffer.dims[buffer.axis]
            known = {**sizes, past: self._length} if isinstance(past, str) else sizes
            counts = [symbolic.substitute(dim, known) for dim in buffer.tokens]
            if counts and all(isinstance(count, int) for count in counts):
                return max(count for count in counts if isinstance(count, int))  # others are 1
        raise UsageError("the inputs' sizes do not tell how many positions a step appends: say tokens=")

    def _sizes(self, feed: Mapping[str, Any]) -> dict[str, int]:
        """The sizes that symbols stand for, as the inputs say."""
        sizes: dict[str, int] = {}
        for name, dims in self._session.dims.items():
            for dim, size in zip(dims, feed[name].shape(), strict=False):
                if isinstance(dim, str):
                    sizes.setdefault(dim, int(size))
        return sizes

    def _prepare(self, feed: Mapping[str, Any], length: int) -> None:
        """Have buffers with room for `length` positions, of the batch that the inputs have."""
        known = self._sizes(feed)
        sizes = [self._dims(buffer, known) for buffer in self._session.buffers]
        grown = self._capacity
        while grown < length:
            grown *= 2
        fits = self._arrays and all(a.shape[1:] == each for a, each in zip(self._arrays, sizes, strict=True))
        if fits and grown == len(self._arrays[0]):
            return
        if self._length and not fits:
            raise UsageError("the sequences of the cache are others than those of the inputs: reset it, or reorder it")
        old, self._capacity = self._arrays, grown
        dtypes = [buffer.dtype.numpy() for buffer in self._session.buffers]
        self._arrays = [np.empty((grown, *each), dtype) for each, dtype in zip(sizes, dtypes, strict=True)]
        for array, before in zip(self._arrays, old if self._length else (), strict=False):
            array[: self._length] = before[: self._length]
        self._note_shapes()

    def _dims(self, buffer: SharedBuffer, known: Mapping[str, int]) -> tuple[int, ...]:
        """The sizes of a buffer behind the first."""
        sizes = []
        for axis, dim in enumerate(buffer.dims):
            if axis == buffer.axis:
                continue
            size = dim if isinstance(dim, int) else known.get(dim or "")
            if size is None and self._arrays and self._length:
                size = self._arrays[self._session.buffers.index(buffer)].shape[axis + (axis < buffer.axis)]
            if size is None:
                raise UsageError(f"the inputs' sizes do not tell axis {axis} of {quoted(buffer.past)}: load a past")
            sizes.append(size)
        return tuple(sizes)

    def _note_shapes(self) -> None:
        """Shapes of the pasts, for the models that ask for them: bound once, changed in place."""
        self._shapes = []
        for buffer, array in zip(self._session.buffers, self._arrays, strict=True):
            shape = list(array.shape[1:])
            shape.insert(buffer.axis, 0)
            self._shapes.append(np.array(shape, np.int64))

    def _bind(self, feed: dict[str, Any], count: int, names: Sequence[str]) -> None:
        """Bind everything for a step."""
        import onnxruntime

        wrap, binding = onnxruntime.OrtValue.ortvalue_from_numpy, self._binding
        length = self._length
        binding.clear_binding_outputs()
        for name in names:
            binding.bind_output(name)
        self._bound = [*names]
        for buffer, array, shape in zip(self._session.buffers, self._arrays, self._shapes, strict=True):
            front = wrap(array[: length + count])
            binding.bind_ortvalue_input(buffer.past, front)
            binding.bind_ortvalue_output(buffer.present, front)
            self._bound.append(buffer.present)
            if buffer.shape is not None:
                shape[buffer.axis] = length
                feed[buffer.shape] = wrap(shape)
        feed[self._session.rows] = wrap(np.arange(length, length + count).reshape(count, 1))
        for name, value in feed.items():
            binding.bind_ortvalue_input(name, value)
        self._values = feed


__all__ = ["DEFAULT_CAPACITY", "DecodeLoop"]
