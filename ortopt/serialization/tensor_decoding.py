"""From protobuf to the IR: tensors, whose data stay where they are."""

from __future__ import annotations

import math
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortopt.errors import InvalidModelError
from ortopt.serialization.external_files import ExternalFiles
from ortopt.serialization.mapped_tensors import MappedFile, MappedTensor, data_bytes
from ortopt.serialization.sparse_tensors import SparseTensor
from ortopt.serialization.type_decoding import properties, text
from ortopt.serialization.wire import Stripped
from ortopt.terminal_text import quoted

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
            "metadata_props": properties(proto.metadata_props),
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
        entries = properties(proto.external_data) or {}
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


__all__ = ["TensorDecoder"]
