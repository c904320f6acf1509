"""Which values are constants, what they hold, and when two of them are the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.onnx_ir_internals import attributes_of


def is_overridable(value: ir.Value) -> bool:
    """Whether a caller may give another value: an initializer that is also a graph input is no constant."""
    return value.is_initializer() and value.is_graph_input()


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor that a value always is, or None: an initializer that nobody can override, or a Constant's output.

    A Constant inside a function whose content is a reference attribute is no constant here.
    """
    if value is None:
        return None
    producer = value.producer()
    if producer is None:
        return None if value.is_graph_input() else value.const_value
    if producer.op_type != "Constant" or producer.domain != "":
        return None
    if value.const_value is None:
        value.const_value = constant_content(producer)
    return value.const_value


def constant_content(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Constant node holds, in any of its spellings; None for sparse tensors and reference attributes."""
    if len(node.attributes) != 1:
        return None
    (attribute,) = attributes_of(node).values()
    if attribute.is_ref():
        return None
    match attribute.name:
        case "value":
            # Not as_tensor(): that asks a protocol which attributes it has, 0.1 ms each time.
            tensor: ir.TensorProtocol = attribute.value
            return tensor
        case "value_int" | "value_ints":
            return ir.Tensor(np.array(attribute.value, np.int64))
        case "value_float" | "value_floats":
            return ir.Tensor(np.array(attribute.value, np.float32))
        case "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        case "value_strings":
            strings = [text.encode() for text in attribute.as_strings()]
            return ir.StringTensor(strings, shape=ir.Shape([len(strings)]))
    return None


def same_constant(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    """Whether two tensors are equal bit for bit, with the same dtype and dims: +0.0 is not -0.0, NaN payloads count."""
    if a is b:
        return True
    if a.dtype != b.dtype or tuple(a.shape) != tuple(b.shape):
        return False
    if a.dtype == ir.DataType.STRING:
        return bool((strings_of(a) == strings_of(b)).all())
    return a.tobytes() == b.tobytes()


def strings_of(tensor: ir.TensorProtocol) -> np.ndarray:
    """The elements of a string tensor in its shape, as an object array of bytes.

    numpy's own type of strings, which onnx-ir's tensors give, drops zero bytes at their ends.
    """
    strings = tensor.string_data() if isinstance(tensor, ir.StringTensor) else tensor.numpy().reshape(-1).tolist()
    elements = np.empty(len(strings), object)
    elements[:] = [one.encode() if isinstance(one, str) else one for one in strings]
    return elements.reshape(tensor.shape.numpy())
