"""A session of ONNX Runtime that keeps the cache of a decoder: only decode loops run it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ortopt.errors import UsageError
from ortopt.runtime.denormals import FlushingSession, flushed
from ortopt.runtime.onnxruntime_internals import NativeBinding, NativeSession, native_session, new_binding

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.decoding.shared_buffers import SharedModel
    from ortopt.runtime.execution.weights import Placed
    from ortopt.runtime.onnxruntime_interface.session_protocol import WholeSession

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

    def __init__(self, whole: WholeSession, shared: SharedModel, placed: Placed) -> None:
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


__all__ = ["CachedSession"]
