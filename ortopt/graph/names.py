"""Names of values: how one is renamed."""

from __future__ import annotations

import copy

import onnx_ir as ir


def set_name(value: ir.Value, name: str | None) -> None:
    """Rename a value, and with an initializer what it is written from.

    onnx-ir renames the tensor, too. But that may be shared, with the model of the caller for one: an initializer gets
    one of its own, and that of a Constant node keeps its name.
    """
    tensor = value.const_value
    if tensor is None or tensor.name == name:
        value.name = name
        return
    value.const_value = None
    value.name = name
    if value.producer() is None:
        tensor = _copied(tensor)
        tensor.name = name
    value.const_value = tensor


def _copied(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor with a name of its own, and the same content."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):  # whose name is that of what it wraps
        return ir.serde.TensorProtoTensor(copy.deepcopy(tensor.raw))
    return copy.copy(tensor)


__all__ = ["set_name"]
