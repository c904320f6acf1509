"""Read a model: from a path, bytes, a stream, a ``ModelProto`` or an ``ir.Model``; weights are mapped, never parsed."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped,unused-ignore]
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError, OutputError
from ortopt.graph.order import in_order
from ortopt.onnx_ir_internals import clone
from ortopt.serialization import shadowed_names
from ortopt.serialization.checks import specification
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.decode import decode
from ortopt.serialization.encode import encode
from ortopt.serialization.mapped_tensors import CHUNK, MappedFile, MappedTensor
from ortopt.serialization.opset_imports import CONSTANT_INITIALIZERS_FROM_IR
from ortopt.serialization.tensor_decoding import ExternalFiles
from ortopt.serialization.wire import Buffer, strip
from ortopt.terminal_text import one_line, quoted

_PAGE: Final = "a page of HTML or XML, not a model: what was downloaded is no file of the model"

_BEGINNINGS: Final = (
    (0, b"version https://git-lfs", "a pointer of Git LFS, not the model itself: git lfs pull fetches it"),
    *((0, mark, _PAGE) for mark in (b"<!doctype", b"<html", b"<?xml")),
    (0, b"PK\x03\x04", "a zip archive, as PyTorch saves: torch.onnx.export makes an ONNX model of a network"),
    (0, b"\x80\x02", "a Python pickle, as PyTorch saved: torch.onnx.export makes an ONNX model of a network"),
    (0, b"\x89HDF", "an HDF5 file, as Keras saves: tf2onnx makes an ONNX model of a network"),
    (0, b"GGUF", "a model of GGML (GGUF), not of ONNX"),
    (4, b"ORTM", "a model in ONNX Runtime's own format (.ort): optimize the ONNX model that it was made of"),
    (4, b"TFL3", "a model of TensorFlow Lite: tf2onnx makes an ONNX model of it"),
    (8, b'{"', "a file of safetensors: weights without a graph"),
)


def other_format(buffer: Buffer) -> str:
    """What a file is that is no ONNX model, for people; empty where its first bytes do not tell.

    Args:
        buffer: The file's bytes.
    """
    first = bytes(buffer[:64])
    text = first.lstrip(b"\xef\xbb\xbf \r\n").lower()
    return next(
        (what for at, mark, what in _BEGINNINGS if first[at:].startswith(mark) or (not at and text.startswith(mark))),
        "",
    )


class HoldsModel(Protocol):
    """An object that holds a model, as ``torch.onnx.ONNXProgram``, which ``torch.onnx.export`` returns."""

    @property
    def model(self) -> ir.Model:
        """The model."""


if TYPE_CHECKING:
    Source = str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto | ir.Model | HoldsModel

SOURCE_KEY: Final = "ortopt.source"
"""Where `load` leaves an `Origin` in ``model.meta``."""

_SOURCES: Final = (
    "models are paths, bytes, streams, a ModelProto, an onnx_ir.Model, and what torch.onnx.export(..., dynamo=True)"
    " returns"
)

_MAX_BYTES: Final = 2**31 - 1
"""What protobuf can read; a stream that goes on longer is no model."""


class Origin(Struct, frozen=True):
    """Where a loaded model came from.

    Attributes:
        path: The file, or None.
        nbytes: Size of model and external data together, as they were read.
        external: Whether it has external data.
        typed: The values whose types it states, besides its inputs and outputs; or whether it states all. A result
            states no others.
        data: The files of external data.
    """

    path: str | None
    nbytes: int
    external: bool
    typed: bool | frozenset[str]
    data: tuple[str, ...] = ()


class Kept:
    """A model's file, held open from its first loading on: it can be loaded again when its name has gone.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.files = _external_files(self.path)
        self._file: MappedFile | None = None

    def open(self) -> MappedFile:
        """The file that was there the first time.

        Raises:
            InvalidModelError: It is no regular file, or has been written into since.
            OSError: It cannot be opened.
        """
        if self._file is None:
            self._file = MappedFile(self.path)
        self._file.check()
        return self._file


def load(
    source: Source | Kept,
    token: CancellationToken = NEVER,
    *,
    folder: str | os.PathLike[str] | None = None,
    checked: bool = True,
) -> ir.Model:
    """Load a model; what was given is never changed.

    Large tensors become `MappedTensor`: views of the file, which may be renamed, replaced or deleted meanwhile, but not
    written into. Nodes out of order are sorted. Before IR version 4 initializers had to be listed as inputs, and nobody
    could override them: they are constants here, and no inputs.

    Args:
        source: A path, a serialized model, a binary stream that is read to its end, a ``ModelProto`` or an ``ir.Model``
            (cloned; its tensors are shared), or what holds one (`held`); or a file that is kept open.
        token: Cancellation token.
        folder: Where the files of external data are; None for the folder of the model's file.
        checked: Whether nodes are compared with the specification too: ONNX Runtime does that anyway.

    Returns:
        A model that `validate` accepts, with an `Origin` in ``model.meta[SOURCE_KEY]``.

    Raises:
        InvalidModelError: There is no such file, or it is broken, or has something that cannot be carried; one line
            that names the source.
    """
    path = source.path if isinstance(source, Kept) else source
    label = quoted(os.fspath(path)) if isinstance(path, str | os.PathLike) else "the model"
    try:
        model = _loaded(source, token, None if folder is None else ExternalFiles(folder))
        if checked:
            specification.check(model, token)
    except (InvalidModelError, OutputError) as error:
        raise InvalidModelError(f"{label}: {one_line(error)}") from error
    except RecursionError:
        raise InvalidModelError(f"{label}: its graphs are nested too deeply") from None
    except OSError as error:
        raise InvalidModelError(f"{label}: {one_line(error.strerror or error)}") from error
    except (TypeError, ValueError, AttributeError) as error:  # what protobuf and onnx-ir raise on rare nonsense
        raise InvalidModelError(f"{label}: {one_line(error)}") from error
    return model


def held(source: Any) -> Any:
    """The model that an object holds, as ``torch.onnx.ONNXProgram`` does; what is no such object is returned as it is.

    Args:
        source: An object with an `ir.Model` as ``model``, or a ``ModelProto`` as ``model_proto``; or a model.
    """
    if isinstance(source, str | bytes | os.PathLike | onnx.ModelProto | ir.Model):
        return source
    model = getattr(source, "model", None)
    if isinstance(model, ir.Model):
        return model
    proto = getattr(source, "model_proto", None)  # a whole copy: asked for only where there is nothing else
    return proto if isinstance(proto, onnx.ModelProto) else source


def _loaded(given: Source | Kept, token: CancellationToken, files: ExternalFiles | None) -> ir.Model:
    source = held(given)
    if isinstance(source, Kept):
        return _parsed(source.open(), source.path, token, files or source.files)
    if isinstance(source, ir.Model):
        return _cloned(source, token)
    if isinstance(source, onnx.ModelProto):
        try:
            return _parsed(source.SerializeToString(), None, token, files)
        except (EncodeError, ValueError) as error:
            raise InvalidModelError(f"protobuf cannot write this ModelProto: {error}") from error
    if isinstance(source, bytes | bytearray | memoryview):
        return _parsed(bytes(source), None, token, files)
    if isinstance(source, str | os.PathLike):
        return _parsed(MappedFile(source), os.fspath(source), token, files)
    if not hasattr(source, "read"):
        raise InvalidModelError(f"an object of type {type(source).__name__} is none; {_SOURCES}")
    return _parsed(_read_stream(source, token), None, token, files)


def _read_stream(stream: BinaryIO, token: CancellationToken) -> bytes:
    read = io.BytesIO()
    while chunk := stream.read(CHUNK):
        token.check()
        read.write(chunk)
        if read.tell() > _MAX_BYTES:
            raise InvalidModelError("the stream goes on beyond 2 GB, which no model without external data can have")
    return read.getvalue()


def _external_files(path: str | None) -> ExternalFiles:
    return ExternalFiles(None if path is None else os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120


def _parsed(
    source: MappedFile | bytes, path: str | None, token: CancellationToken, files: ExternalFiles | None = None
) -> ir.Model:
    buffer = source.map if isinstance(source, MappedFile) else source
    if not buffer:
        raise InvalidModelError("it is empty")
    proto = onnx.ModelProto()
    try:
        stripped = strip(buffer, token)
        if isinstance(source, MappedFile):
            source.forget()
        proto.ParseFromString(stripped.model)
    except (DecodeError, InvalidModelError) as error:
        own = isinstance(error, InvalidModelError)
        what = str(error) if own else f"not an ONNX model, or nested too deeply for protobuf: {error}"
        raise InvalidModelError(other_format(buffer) or what) from None
    files = files or _external_files(path)
    model, typed = decode(proto, stripped, source, files, token)
    _finish(model, Origin(path, len(buffer) + files.nbytes, files.used, typed, files.paths), token)
    return model


def _cloned(source: ir.Model, token: CancellationToken) -> ir.Model:
    if not validate(source, any_order=True, token=token):  # onnx-ir clones only what is in order
        parts = encode(source, token=token)
        return _parsed(b"".join(part if isinstance(part, bytes) else part.tobytes() for part in parts), None, token)
    try:
        model = clone(source, token)
    except (RuntimeError, ValueError) as error:
        raise InvalidModelError(f"it cannot be copied: {error}") from error
    for key, value in source.meta.items():
        model.meta[key] = value
    origin = source.meta.get(SOURCE_KEY)
    data = _map_external_tensors(model, token)
    if origin is None:
        tensors = [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
        nbytes = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        external = any(isinstance(tensor, MappedTensor) and tensor.external for tensor in tensors)
        origin = Origin(None, nbytes, external, True, data)
    _finish(model, origin, token)
    return model


def _map_external_tensors(model: ir.Model, token: CancellationToken) -> tuple[str, ...]:
    """Put the files themselves in the place of onnx-ir's pointers to files; which they are."""
    folders: dict[str, ExternalFiles] = {}

    def mapped(tensor: ir.ExternalTensor) -> MappedTensor:
        folder = os.fspath(tensor.base_dir) or os.curdir
        files = folders.setdefault(folder, ExternalFiles(folder))
        try:
            return MappedTensor(
                files.file(os.fspath(tensor.location)),
                tensor.offset or 0,
                tensor.nbytes if tensor.length is None else tensor.length,
                dtype=tensor.dtype,
                shape=tensor.shape,
                name=tensor.name,
                doc_string=tensor.doc_string,
                metadata_props=dict(tensor.metadata_props),
                external=True,
            )
        except InvalidModelError as error:
            raise InvalidModelError(f"tensor {quoted(tensor.name)}: {error}") from None

    bodies = [function.graph for function in model.functions.values()]
    for graph in (*model.graphs(), *bodies, *(inner for body in bodies for inner in body.subgraphs())):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = mapped(value.const_value)
        for node in token.checked(graph):
            for name, attribute in tuple(node.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, mapped(attribute.value), attribute.doc_string)
    return tuple(path for files in folders.values() for path in files.paths)


def _finish(model: ir.Model, origin: Origin, token: CancellationToken) -> None:
    if not validate(model, any_order=True, token=token):
        _sort(model, token)
        validate(model, token=token)
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        shadowed_names.separate(graph, token)
    if model.ir_version < CONSTANT_INITIALIZERS_FROM_IR:  # `save` lists them as inputs again
        graph = model.graph
        graph.inputs[:] = [value for value in graph.inputs if not value.is_initializer()]
    model.meta[SOURCE_KEY] = origin


def _sort(model: ir.Model, token: CancellationToken) -> None:
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        try:
            orders = in_order(graph, token)
        except ValueError:
            raise InvalidModelError(f"nodes of graph {quoted(graph.name)} depend on one another in a circle") from None
        for at, nodes in orders.items():
            for some in token.batched(nodes):
                at.extend(some)
