"""Types of values in ONNX's spelling: ``tensor(float)``, ``seq(tensor(int64))``."""

from __future__ import annotations

from typing import Final

import onnx
import onnx_ir as ir

from ortopt.errors import UsageError

PLAIN: Final = frozenset(dtype for dtype in ir.DataType if dtype not in {ir.DataType.UNDEFINED, ir.DataType.STRING})
"""Element types of numbers."""
NAMES: Final = {f"tensor({dtype.name.lower()})": dtype for dtype in ir.DataType if dtype is not ir.DataType.UNDEFINED}
"""Element types by ONNX's spelling of the tensor's type."""


def is_plain(type_: str | None) -> bool:
    """Whether values of a type, in ONNX's spelling, are OrtValues in a plan: tensors of numbers."""
    return NAMES.get(type_ or "") in PLAIN


def has_no_array(type_: str) -> bool:
    """Whether ONNX Runtime makes no array of tensors of a type, because numpy lacks it."""
    dtype = NAMES.get(type_)
    return dtype in PLAIN and not is_native(dtype)


def is_native(dtype: ir.DataType) -> bool:
    """Whether numpy has an element type."""
    return dtype.bitwidth >= 8 and dtype.numpy().isbuiltin == 1


def type_text(dtype: ir.DataType) -> str:
    """The type of a tensor, in ONNX's spelling."""
    return f"tensor({dtype.name.lower()})"


def write_type(proto: onnx.TypeProto, text: str) -> None:
    """Fill in a type from ONNX's spelling.

    Raises:
        UsageError: It is a type that cannot pass between groups.
    """
    inner = text[text.find("(") + 1 : -1]
    if text.startswith("seq("):
        proto.sequence_type.SetInParent()
        write_type(proto.sequence_type.elem_type, inner)
        return
    if text.startswith("optional("):
        proto.optional_type.SetInParent()
        write_type(proto.optional_type.elem_type, inner)
        return
    if not text.startswith("tensor(") or inner.upper() not in ir.DataType.__members__:
        raise UsageError(f"a value of type {text!r} cannot pass from one group to another")
    proto.tensor_type.elem_type = ir.DataType[inner.upper()].value
