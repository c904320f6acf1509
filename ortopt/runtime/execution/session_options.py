"""What was set in ``onnxruntime.SessionOptions``, of which ONNX Runtime tells only half.

A session has a copy of the options that it was made with, and gives it away: entries, overrides of dimensions and all
else that is data. Overrides and initializers are in it, but cannot be asked for: sessions of small models tell what
they do. Libraries of custom ops and providers are not in the copy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import onnx
import onnx_ir as ir

from ortopt.errors import UsageError
from ortopt.evaluation.sessions import shares_threads, thread_attributes
from ortopt.graph import scope
from ortopt.runtime.execution.group_spec import argument_of, free_prefix
from ortopt.runtime.onnxruntime_internals import (
    NativeSession,
    NativeValue,
    add_constant,
    open_native_session,
    small_model,
    uninitialized_session,
)
from ortopt.runtime.values.containers import to_numpy
from ortopt.terminal_text import quoted

if TYPE_CHECKING:
    import onnxruntime

_lock = threading.Lock()

_POOLLESS: Final = {"use_per_session_threads": False, "intra_op_num_threads": 0, "inter_op_num_threads": 0}
_AFFINITIES: Final = "session.intra_op_thread_affinities"
_UNKNOWN_TYPES: Final = frozenset({ir.DataType.COMPLEX64, ir.DataType.COMPLEX128})
"""Types of which no OrtValue can be made."""


class Copies:
    """Makes copies of ``onnxruntime.SessionOptions``: all but libraries of custom ops and providers.

    Raises what ONNX Runtime raises where no session can be made with them.

    Args:
        options: The options; they stay as they are.
    """

    def __init__(self, options: onnxruntime.SessionOptions) -> None:
        with _lock, _in_this_process(options):
            carrier = _carrier(options)
        self._master = carrier.session_options
        if options.enable_profiling:
            Path(carrier.end_profiling()).unlink(missing_ok=True)
        least = 0 if shares_threads() else 1  # other numbers are warned of there
        quick = {"enable_profiling": False, "intra_op_num_threads": least, "inter_op_num_threads": least}
        self._restored = {name: getattr(options, name) for name in (*quick, *thread_attributes())}
        if shares_threads():
            self._restored.update(_POOLLESS)
        for name, value in quick.items():  # for the carriers of other copies
            setattr(self._master, name, value)

    def make(self) -> onnxruntime.SessionOptions:
        """A copy."""
        copy = _carrier(self._master).session_options
        for name, value in self._restored.items():
            setattr(copy, name, value)
        return copy

    def quiet(self) -> onnxruntime.SessionOptions:
        """A copy for sessions of small models that say nothing."""
        import onnxruntime

        own = _carrier(self._master).session_options
        own.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        own.optimized_model_filepath = ""
        own.log_severity_level = 4
        return own


def _carrier(options: onnxruntime.SessionOptions) -> NativeSession:
    proto = small_model("carrier")
    add_constant(proto, "constant")
    return uninitialized_session(options, proto.SerializeToString())


@contextlib.contextmanager
def _in_this_process(options: onnxruntime.SessionOptions) -> Iterator[None]:
    """Options with which a session can be made here: where threads are shared, all sessions must share them."""
    if not shares_threads():
        yield
        return
    own = {name: getattr(options, name) for name in _POOLLESS}
    for name, value in _POOLLESS.items():
        setattr(options, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(options, name, value)


def brings_files(copies: Copies) -> bool:
    """Whether options bring contents of files: ONNX Runtime says that it misses one among them."""
    proto = small_model("probe")
    absent = proto.graph.initializer.add(
        name="ortopt.absent", data_type=onnx.TensorProto.UINT8, dims=[1], data_location=onnx.TensorProto.EXTERNAL
    )
    for key, value in (("location", "ortopt.absent"), ("offset", "0"), ("length", "1")):
        absent.external_data.add(key=key, value=value)
    proto.graph.node.append(onnx.helper.make_node("Identity", ["ortopt.absent"], ["ortopt.read"]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("ortopt.read", onnx.TensorProto.UINT8, [1]))
    try:
        open_native_session(copies.quiet(), proto)
    except Exception as error:  # without them it misses the file
        return "not found from the table" in str(error)
    return False


def apply(options: onnxruntime.SessionOptions, copies: Copies, model: ir.Model) -> bool:
    """Let a model have the sizes and the initializers that options bring.

    Args:
        options: The options.
        copies: Copies of them.
        model: The model; changed in place.

    Returns:
        Whether the options bring initializers: then a copy of the options must not be used for its parts, in which
        other values may have their names.

    Raises:
        UsageError: The options name providers or bring external initializers, which groups cannot have; or an
            initializer has another type or shape than the model's.
    """
    if hasattr(options, "has_providers") and options.has_providers():  # 1.22
        raise UsageError(
            "the session options name execution providers, which cannot be told apart by group: name them in providers="
        )
    _fix_dims(_with_overrides(options, copies), model)
    initializers = _initializers(copies.quiet(), model)
    for value, content in initializers:
        tensor = ir.Tensor(to_numpy(content), name=value.name)
        declared = value.const_value
        assert declared is not None
        if tensor.dtype != declared.dtype or tensor.shape != declared.shape:
            raise UsageError(
                f"the initializer for {quoted(value.name)} is {tensor.dtype}{list(tensor.shape)}, the model's is"
                f" {declared.dtype}{list(declared.shape)}"
            )
        value.const_value = tensor
    return bool(initializers)


def _with_overrides(options: onnxruntime.SessionOptions, copies: Copies) -> onnxruntime.SessionOptions:
    """A quiet copy that fixes sizes where the options do: before 1.23 that is a step of ONNX Runtime's optimizers."""
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    quiet = copies.quiet()
    if options.graph_optimization_level != levels.ORT_DISABLE_ALL:
        quiet.graph_optimization_level = levels.ORT_ENABLE_BASIC
    return quiet


def _fix_dims(options: onnxruntime.SessionOptions, model: ir.Model) -> None:
    """Overrides of free dimensions, as the inputs of a session have them."""
    inputs = [
        value
        for value in model.graph.inputs
        if isinstance(value.type, ir.TensorType) and value.shape is not None and _is_asked(value.shape)
    ]
    proto = small_model("probe")
    for value in inputs:
        declared = argument_of(value).declared()
        for i, dim in enumerate(declared.type.tensor_type.shape.dim):
            assert value.shape is not None
            dim.denotation = value.shape.get_denotation(i) or ""
        proto.graph.input.append(declared)
    try:
        add_constant(proto, f"{free_prefix(value.name for value in inputs)}constant")
        session = open_native_session(options, proto)
    except Exception as error:
        if "initializer" not in str(error):
            raise
        raise UsageError(
            "the session options have external initializers, which cannot be told apart by group: use add_initializer,"
            f" or put them into the model ({error})"
        ) from error
    chosen: dict[str, set[int | None]] = {}
    fixed: list[tuple[ir.Value, list[int | ir.SymbolicDim]]] = []
    for value, seen in zip(inputs, session.inputs_meta, strict=True):
        assert value.shape is not None
        dims = list(value.shape.dims)
        for i, (dim, size) in enumerate(zip(dims, seen.shape, strict=True)):
            if isinstance(dim, int):
                continue
            known = size if isinstance(size, int) and size >= 0 else None
            if dim.value is not None:
                chosen.setdefault(dim.value, set()).add(known)
            if known is not None:
                dims[i] = known
        fixed.append((value, dims))
    from ortopt.analysis.dimensions import override

    everywhere = {name: sizes.pop() for name, sizes in chosen.items() if len(sizes) == 1}
    override(model, {name: size for name, size in everywhere.items() if size is not None})
    for value, dims in fixed:  # an override by denotation may be one input's alone
        assert value.shape is not None
        denotations = [value.shape.get_denotation(i) for i in range(len(dims))]
        value.shape = ir.Shape(dims, denotations=denotations)


def _is_asked(shape: ir.Shape) -> bool:
    """Whether an override could mean a dimension: those of fixed ones have to agree."""
    return not shape.is_static() or any(shape.get_denotation(i) for i in range(len(shape)))


def _initializers(options: onnxruntime.SessionOptions, model: ir.Model) -> list[tuple[ir.Value, NativeValue]]:
    """The initializers that options bring for a model, each with the value that it has in the model."""
    values = [
        value
        for graph in scope.below(model.graph)
        for value in graph.initializers.values()
        if value.const_value is not None and value.name and value.const_value.dtype not in _UNKNOWN_TYPES
    ]
    if not values:
        return []
    proto = small_model("probe")
    names: set[str] = set()
    for value in values:
        name = value.name or ""
        assert value.const_value is not None
        if name in names:
            continue
        names.add(name)
        kind = value.const_value.dtype.value
        proto.graph.initializer.append(onnx.TensorProto(name=name, data_type=kind, dims=[0]))
        # As it is: an Identity has no kernel for types of four bits.
        proto.graph.output.append(onnx.helper.make_value_info(name, onnx.helper.make_tensor_type_proto(kind, None)))
    session = open_native_session(options, proto)
    asked = list(names)
    contents = dict(zip(asked, session.run_with_ort_values({}, asked, None), strict=True))
    return [(value, contents[value.name or ""]) for value in values if list(contents[value.name or ""].shape()) != [0]]


def has_affinities(options: onnxruntime.SessionOptions) -> bool:
    """Whether threads are pinned to processors."""
    return bool(entry(options, _AFFINITIES))


def with_entries(
    options: onnxruntime.SessionOptions | None, entries: Mapping[str, str]
) -> onnxruntime.SessionOptions | None:
    """Options with more configuration entries, in a copy: libraries of custom ops are not in it.

    Args:
        options: The caller's options, or None.
        entries: The entries; where there are none, the options are as they were.
    """
    import onnxruntime

    if not entries:
        return options
    own = onnxruntime.SessionOptions() if options is None else Copies(options).make()
    for key, value in entries.items():
        own.add_session_config_entry(key, value)
    return own


def entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """A configuration entry, None if it is not set."""
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return None


def named(keys: Iterable[str], options: onnxruntime.SessionOptions) -> dict[str, str]:
    """Those of some configuration entries that are set."""
    entries = {key: entry(options, key) for key in keys}
    return {key: text for key, text in entries.items() if text is not None}
