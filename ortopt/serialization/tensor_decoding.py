"""From protobuf to the IR: tensors, whose data stay where they are, in the model or in files beside it."""

from __future__ import annotations

import math
import os
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortopt.errors import InvalidModelError
from ortopt.serialization.mapped_tensors import MappedFile, MappedTensor, data_bytes
from ortopt.serialization.sparse_tensors import SparseTensor
from ortopt.serialization.types_of_values import metadata_of, text
from ortopt.serialization.wire import Stripped
from ortopt.terminal_text import quoted


class ExternalFiles:
    """The files of external data of one model: each is opened once, and none outside of the model's folder.

    Args:
        folder: The model's folder; None for a model that came without a place.

    Attributes:
        used: Whether anybody asked for a file.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = None if folder is None else os.path.realpath(folder)
        self._files: dict[str, MappedFile] = {}
        self.used = False

    @property
    def nbytes(self) -> int:
        """The sizes of the opened files, summed."""
        return sum(file.size for file in {file.path: file for file in self._files.values()}.values())

    @property
    def paths(self) -> tuple[str, ...]:
        """The opened files."""
        return tuple(dict.fromkeys(file.path for file in self._files.values()))

    def file(self, location: str) -> MappedFile:
        """The file at a location that a tensor names.

        Raises:
            InvalidModelError: The location leads out of the folder, or there is no readable file.
        """
        self.used = True
        if location in self._files:
            return self._files[location]
        if self._folder is None:
            raise InvalidModelError(
                f"its data are in the external file {quoted(location)}, and a model that is not loaded from a path"
                " has no folder to look in"
            )
        if not location or "\0" in location:
            raise InvalidModelError(f"{quoted(location)} is no location of external data")
        path = os.path.realpath(os.path.join(self._folder, location))  # noqa: PTH118 -- join keeps absolute paths
        if os.path.isabs(location) or os.path.commonpath([self._folder, path]) != self._folder:  # noqa: PTH117
            raise InvalidModelError(f"its external data {quoted(location)} lie outside of the model's folder")
        known = next((file for file in self._files.values() if file.path == path), None)
        try:
            self._files[location] = known or MappedFile(path)
        except InvalidModelError as error:
            raise InvalidModelError(f"its external data {quoted(location)}: {error}") from None
        except OSError as error:
            raise InvalidModelError(f"its external data {quoted(location)}: {error.strerror or error}") from None
        return self._files[location]


_DataType = ir.DataType
_TYPED_FIELDS: Final = {
    **dict.fromkeys((_DataType.FLOAT, _DataType.COMPLEX64), "float_data"),
    **dict.fromkeys((_DataType.DOUBLE, _DataType.COMPLEX128), "double_data"),
    _DataType.INT64: "int64_data",
    **dict.fromkeys((_DataType.UINT32, _DataType.UINT64), "uint64_data"),
}
_COMPLEX: Final = frozenset({_DataType.COMPLEX64, _DataType.COMPLEX128})
_ALL_TYPED_FIELDS: Final = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


class TensorDecoder:
    """Makes the tensors of one model.

    Args:
        stripped: The model without its large tensors.
        source: What the cuts point into.
        files: The files of external data.

    Attributes:
        has_sparse: Whether a tensor was sparse.
    """

    def __init__(self, stripped: Stripped, source: MappedFile | bytes, files: ExternalFiles) -> None:
        self._stripped = stripped
        self._source = source
        self._files = files
        self.has_sparse = False

    def dense(self, proto: onnx.TensorProto, label: str) -> ir.TensorProtocol:
        """The tensor of a message.

        Args:
            proto: The message.
            label: What people know the tensor by.

        Raises:
            InvalidModelError: The message contradicts itself, or has what cannot be carried.
        """
        try:
            return self._checked_tensor(proto)
        except InvalidModelError as error:
            raise InvalidModelError(f"{label}: {error}") from None

    def sparse(self, proto: onnx.SparseTensorProto, label: str) -> SparseTensor:
        """The sparse tensor of a message (see `dense`)."""
        values, indices = self.dense(proto.values, label), self.dense(proto.indices, f"indices of {label}")
        tensor = SparseTensor(values, indices, tuple(proto.dims))
        self.has_sparse = True
        try:
            tensor.check()
        except InvalidModelError as error:
            raise InvalidModelError(f"{label}: {error}") from None
        return tensor

    def _checked_tensor(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        try:
            dtype = ir.DataType(proto.data_type)
        except ValueError:
            raise InvalidModelError(f"its data type {proto.data_type} does not exist") from None
        if proto.HasField("segment"):
            raise InvalidModelError("it is stored in segments, which ortopt does not carry")
        dims = list(proto.dims)
        if any(dim < 0 for dim in dims):
            raise InvalidModelError(f"it has a negative dimension: {dims}")
        common: dict[str, Any] = {
            "shape": ir.Shape(dims, frozen=True),
            "name": text(proto.name),
            "doc_string": text(proto.doc_string) or None,
            "metadata_props": metadata_of(proto.metadata_props),
        }
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return self._external_tensor(proto, dtype, common)
        if dtype == ir.DataType.STRING:
            if len(proto.string_data) != math.prod(dims):
                raise InvalidModelError(f"it has {len(proto.string_data)} strings where its shape needs others: {dims}")
            return ir.StringTensor(list(proto.string_data), **common)
        if proto.HasField("raw_data"):
            raw = proto.raw_data
            cut = self._stripped.cut(raw)
            if cut is None:
                return MappedTensor(raw, 0, len(raw), dtype=dtype, **common)
            return MappedTensor(self._source, cut.offset, cut.length, dtype=dtype, **common)
        return _typed_tensor(proto, dtype, dims)

    def _external_tensor(self, proto: onnx.TensorProto, dtype: ir.DataType, common: dict[str, Any]) -> MappedTensor:
        if proto.HasField("raw_data") or any(len(getattr(proto, field)) for field in _ALL_TYPED_FIELDS):
            raise InvalidModelError("it has both data of its own and external data")
        entries = metadata_of(proto.external_data) or {}
        needed = data_bytes(dtype, list(proto.dims))
        offset = _number(entries, "offset", 0)
        length = _number(entries, "length", needed)
        if needed == 0 and length == 0:
            return MappedTensor(b"", 0, 0, dtype=dtype, external=True, **common)
        file = self._files.file(entries.get("location", ""))
        return MappedTensor(file, offset, length, dtype=dtype, external=True, **common)


def _number(entries: dict[str, str], key: str, default: int) -> int:
    number = entries.get(key)
    if number is None:
        return default
    if not (number.isascii() and number.isdigit() and len(number) <= 19):
        raise InvalidModelError(f"the {key} of its external data is {quoted(number)}")
    return int(number)


def _typed_tensor(proto: onnx.TensorProto, dtype: ir.DataType, dims: list[int]) -> ir.TensorProtocol:
    """A tensor whose numbers are in a field of their own type; the few that there are stay as protobuf has them."""
    if dtype == ir.DataType.UNDEFINED:
        raise InvalidModelError("it has no data type")
    field = _TYPED_FIELDS.get(dtype, "int32_data")
    others = [name for name in _ALL_TYPED_FIELDS if name != field and len(getattr(proto, name))]
    if others:
        raise InvalidModelError(f"its data are in {others[0]}, where those of a {dtype.name} tensor never are")
    count = math.prod(dims) * (2 if dtype in _COMPLEX else 1)
    if dtype.bitwidth in {2, 4}:
        count = data_bytes(dtype, dims)
    if len(getattr(proto, field)) != count:
        raise InvalidModelError(f"it has {len(getattr(proto, field))} numbers in {field} where its shape needs {count}")
    own = onnx.TensorProto()  # a copy: the original would keep the whole model's message alive
    own.CopyFrom(proto)
    tensor = ir.serde.TensorProtoTensor(own)
    del own.metadata_props[:]  # the tensor has read them; onnx-ir would write them twice
    return tensor
