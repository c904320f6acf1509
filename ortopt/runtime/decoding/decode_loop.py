"""Decode loops: calls of a decoder, one after the other, on a cache that stays where it is; the session of it.

The buffers of a loop have what the cache holds in front, and room for more behind it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from ortopt.errors import UsageError
from ortopt.graph import symbolic
from ortopt.runtime.denormals import FlushingSession, flushed
from ortopt.runtime.onnxruntime_internals import (
    NativeBinding,
    NativeSession,
    native_device,
    native_session,
    native_value,
    new_binding,
    tensor_over,
)
from ortopt.runtime.values.containers import adopt_dlpack_tensors, to_numpy
from ortopt.runtime.values.tensors import borrow, elements, to_ort
from ortopt.terminal_text import quoted

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.decoding.shared_buffers import SharedBuffer, SharedModel
    from ortopt.runtime.execution.weights import Placed
    from ortopt.runtime.instruments import Counters


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


_REFUSAL: Final = "this session keeps the cache (shared_cache): run it by decode_loop()"


class CachedSession:
    """What runs a model whose pasts and presents are one buffer each.

    Args:
        whole: ONNX Runtime's session of the model.
        shared: The model.
        placed: The same, with its weights.

    Attributes:
        whole: ONNX Runtime's session.
        buffers: The buffers.
        copied: The presents that something reads through a copy, with its op.
        dims: The declared sizes of the inputs that the caller feeds.
    """

    def __init__(self, whole: onnxruntime.InferenceSession, shared: SharedModel, placed: Placed) -> None:
        self.whole = whole
        self._kept = placed.kept
        self._native: NativeSession = native_session(whole)
        self._around = flushed if isinstance(whole, FlushingSession) else contextlib.nullcontext
        self.buffers = shared.buffers
        self.copied = shared.copied
        internal = {name for buffer in self.buffers for name in (buffer.past, buffer.rows, buffer.shape)}
        self._inputs = [value for value in whole.get_inputs() if value.name not in internal]
        presents = {buffer.present for buffer in self.buffers}
        self._outputs = [value for value in whole.get_outputs() if value.name not in presents]
        self.dims: dict[str, list[Any]] = {value.name: list(value.shape) for value in self._inputs}

    def get_inputs(self) -> list[onnxruntime.NodeArg]:
        """``onnxruntime.NodeArg`` of each input that the caller feeds."""
        return self._inputs

    def get_outputs(self) -> list[onnxruntime.NodeArg]:
        """``onnxruntime.NodeArg`` of each output that a step returns."""
        return self._outputs

    def binding(self) -> NativeBinding:
        """Memory for inputs and outputs, as ONNX Runtime's C++ object."""
        return new_binding(self._native)

    def run_bound(self, binding: NativeBinding, options: onnxruntime.RunOptions | None) -> None:
        """Run the model from and to bound memory."""
        with self._around():
            self._native.run_with_iobinding(binding, options)

    def run(self, *_: Any) -> NoReturn:
        """Refused, and so are the others: they know no cache."""
        raise UsageError(_REFUSAL)

    run_with_ort_values = run_with_ortvaluevector = run_with_iobinding = run_async = io_binding = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


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
        self._session = session
        self._counters = counters
        self._cache = CacheBuffers(session.buffers, capacity)
        self._lock = threading.Lock()
        self._outputs = tuple(value.name for value in session.get_outputs())
        self._binding = session.binding()
        self._bound: tuple[str, ...] = ()  # outputs of the binding, presents apart
        self._rows: dict[str, Any] = {}  # the places of new rows, and what they are for
        self._alive: list[Any] = []  # arrays in which bound values lie

    @property
    def length(self) -> int:
        """How many positions the cache holds."""
        return self._cache.length

    @property
    def capacity(self) -> int:
        """How many positions the buffers have room for."""
        return self._cache.capacity

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
            ValueError: An input is missing, or there is no such input or output.
            UsageError: It cannot be told how many positions are appended, or for which batch.
            onnxruntime.capi.onnxruntime_pybind11_state.Fail: And its kin: what ONNX Runtime refuses.
        """
        names = self._outputs if not output_names else self._checked(output_names)
        with self._lock:
            self._alive = []
            feed, sizes = self._fed(adopt_dlpack_tensors(input_feed))
            count = self._tokens(sizes) if tokens is None else tokens
            if count < 1:
                raise UsageError(f"a step appends at least one position, not {count}")
            self._cache.prepare(sizes, self._cache.length + count)
            wanted = tuple(dict.fromkeys(names))
            self._bind(feed, count, wanted)
            self._session.run_bound(self._binding, run_options)
            results = dict(zip(wanted, elements(self._binding.get_outputs()), strict=False))
            self._cache.length += count
            self._counters.called()
            return [to_numpy(results[name]) for name in names]

    def reset(self) -> None:
        """Forget everything: the next step begins new sequences, of any batch. The buffers stay for it."""
        with self._lock:
            self._cache.length = 0

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on.

        Raises:
            UsageError: There are not as many.
        """
        with self._lock:
            self._cache.crop(length)

    def reorder(self, indices: Sequence[int], axis: int = 0) -> None:
        """Hold other sequences, as beam search chooses them: the i-th is what the ``indices[i]``-th was.

        Args:
            indices: As many as there shall be sequences.
            axis: The axis of the sequences in the model's pasts.

        Raises:
            UsageError: There is no such sequence, or nothing is held yet.
        """
        with self._lock:
            self._cache.reorder(indices, axis)

    def past(self) -> dict[str, Any]:
        """A copy of the cache, as the model's pasts, by their names.

        Raises:
            UsageError: Nothing is held yet.
        """
        with self._lock:
            return self._cache.past()

    def load(self, past: Mapping[str, Any]) -> None:
        """Hold a copy of pasts, as another model or an earlier loop computed them.

        Args:
            past: An array for each of the model's pasts, by name.

        Raises:
            UsageError: One is missing, or has another dtype, rank, size or length.
        """
        with self._lock:
            self._cache.load(past)

    def _checked(self, names: Sequence[str]) -> tuple[str, ...]:
        for name in names:
            if name not in self._outputs:
                raise ValueError(
                    f"a step returns no {quoted(name)}: it returns {', '.join(map(quoted, self._outputs))}"
                )
        return tuple(names)

    def _fed(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """The feed as values, everything that the model takes and nothing else; and the sizes of symbols in it."""
        dims = self._session.dims
        missing = [name for name in dims if name not in given]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(given)}).")
        feed: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        for name, value in given.items():
            if name not in dims:
                own = any(name == buffer.past for buffer in self._session.buffers)
                raise ValueError(f"{'the session keeps' if own else 'the model has no input'} {quoted(name)}")
            feed[name], shape = self._value(value)
            for dim, size in zip(dims[name], shape, strict=False):
                if isinstance(dim, str):
                    sizes.setdefault(dim, int(size))
        return feed, sizes

    def _value(self, given: Any) -> tuple[Any, Sequence[int]]:
        """What is given for an input, as a value, and its shape."""
        value = native_value(given)
        if value is not None:
            self._alive.append(given)
            return value, value.shape() if value.is_tensor() else ()
        array = np.asarray(given)
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        self._alive.append(array)
        return borrow(array) if array.dtype.isbuiltin == 1 and array.dtype.kind != "O" else to_ort(array), array.shape

    def _tokens(self, sizes: Mapping[str, int]) -> int:
        """How many positions a step appends, from the sizes of its inputs."""
        for buffer in self._session.buffers:
            first = buffer.tokens[0] if len(buffer.tokens) == 1 else None
            plain = None if first is None or isinstance(first, int) else first.value
            if plain is not None and plain in sizes:
                return sizes[plain]
            past = buffer.dims[buffer.axis]
            known = {**sizes, past: self.length} if isinstance(past, str) else sizes
            counts = [symbolic.substitute(dim, known) for dim in buffer.tokens]
            if counts and all(isinstance(count, int) for count in counts):
                return max(count for count in counts if isinstance(count, int))  # others are 1
        raise UsageError("the inputs' sizes do not tell how many positions a step appends: say tokens=")

    def _bind(self, feed: Mapping[str, Any], count: int, names: tuple[str, ...]) -> None:
        """Bind everything for a step."""
        cache, cpu, length = self._cache, native_device("cpu"), self._cache.length
        if names != self._bound:
            self._binding, self._bound, self._rows = self._session.binding(), names, {}
        binding = self._binding
        for name, value in feed.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, cpu)  # anew: what is bound there is the last step's result
        wrap = tensor_over
        for number, buffer in enumerate(self._session.buffers):
            array = cache.arrays[number]
            front = wrap(array[: length + count], cpu)
            binding.bind_ortvalue_input(buffer.past, front)
            binding.bind_ortvalue_output(buffer.present, front)
            self._place_rows(buffer.rows, count, array.shape[1] if buffer.axis else None)
            if buffer.shape is not None:
                cache.shapes[number][buffer.axis] = length
                shape = np.array(cache.shapes[number], np.int64)
                self._alive.append(shape)
                binding.bind_ortvalue_input(buffer.shape, borrow(shape))
        for rows, _, positions in self._rows.values():
            rows[..., 0] = positions + length

    def _place_rows(self, name: str, count: int, places: int | None) -> None:
        """Bind the places of new rows, for a step that begins at 0: unless those of the last step do."""
        if name in self._rows and self._rows[name][1] == (count, places):
            return
        positions = np.arange(count)
        if places is None:
            rows = positions[:, None].copy()
        else:
            rows = np.stack(np.broadcast_arrays(positions, np.arange(places)[:, None]), axis=-1)
        self._rows[name] = (rows, (count, places), positions)
        self._binding.bind_ortvalue_input(name, borrow(rows))
