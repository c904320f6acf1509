"""How far a model's outputs move when nothing is wrong: the measure for errors that may be rounding, or a mistake.

A result is as right as its original if it is what the original would give for weights and inputs that differ in their
last place. So copies of the original run beside it, and what they differ by is its noise:

- `jittered`: every large float constant and input moved by a unit in the last place, up or down. The primary measure:
  the same kernels, in whatever dtype, with no optimizer in between that could be wrong. So are the scales of a Resize
  that interpolates, upwards: its kernel divides by them, and rounds the places that it gets. And what a Sigmoid, Tanh
  or Erf gives is moved by as much as its kernel errs: 1 + erf(x), where little is left of it, is all error. And so is
  what a DFT of a length gives that is no power of two.
- `widened`: computed in float32 instead of float16 and bfloat16, or in float64 instead of float32: how far the original
  is from the truth. Where ONNX Runtime has the kernels (all in float32, few in float64), and weights are not large.
- the original under ONNX Runtime's own optimizations, which reorder as ours do. They may be wrong, too: this counts up
  to a multiple of the jitter's spread only.

Integers, booleans and strings that come from floats (an index where two logits are all but equal, a value between two
steps of a quantization) are right if one of several copies, moved by up to `PERTURBED_BY` units, gives the same in that
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.semantics import constant_tensor
from ortopt.semantics.opset_changes import DFT_AXIS_IS_AN_INPUT_FROM
from ortopt.serialization.load import load
from ortopt.serialization.mapped_tensors import data_bytes
from ortopt.verification.node_writer import NodeWriter

Array = np.ndarray[Any, Any]

LARGEST_COPY: Final = 1 << 29
"""Bytes of constants from which no copies of a model are made."""

TRUSTED_TIMES: Final = 8
"""How many times the jitter's spread the spread by ONNX Runtime's optimizations may be and still count whole."""

PERTURBED_BY: Final = 4
"""Units in the last place by which copies are moved that show where an integer is undecided."""

_PORTION: Final = 1 << 18
"""Elements that are moved at a time: a few milliseconds."""

_SCALES: Final = 2  # the input of Resize
_SMALLEST: Final = 16  # elements; what is smaller may be a scale, an exponent or a threshold that decides on shapes
_KERNEL_ERRORS: Final = {"Sigmoid": (3.0, 0.0), "Tanh": (5.0, -1.0), "Erf": (1.0, -1.0)}
"""The greatest error of a kernel for float32, in units of 2^-24, and its least result; the greatest is 1.

Measured on ONNX Runtime 1.31 against float64 at 600,000 places up to 20: 2.8, 4.6 and 1.0.
"""
_DFT: Final = "DFT"
_DFT_ERROR: Final = 2.5
"""How far ONNX Runtime's DFT of a length that is no power of two is off at many places, in 2^-24 of the scale of
the same row's result for each number of the length.

Measured on ONNX Runtime 1.31 against float64, 512 rows of 48 to 1,000 numbers: 2.9 to 4.9 at most (5 to 13 in all where
the length is a power of two). The scale is that of the other frequencies than 0, which a mean that is no 0 makes large.
"""
_LONGEST_DFT: Final = 1000
_NAMED_AXIS: Final = 2  # the input of DFT
_AXES_ARE_AN_INPUT_FROM: Final = 18  # of ReduceMax
_BROADCASTING: Final = 8  # opset of Min and Max
_FLOATS: Final = {
    ir.DataType.FLOAT: np.uint32,
    ir.DataType.DOUBLE: np.uint64,
    ir.DataType.FLOAT16: np.uint16,
    ir.DataType.BFLOAT16: np.uint16,
}
_WIDER_THAN_HALF: Final = {ir.DataType.FLOAT16: ir.DataType.FLOAT, ir.DataType.BFLOAT16: ir.DataType.FLOAT}
_WIDER_THAN_SINGLE: Final = {ir.DataType.FLOAT: ir.DataType.DOUBLE}
_DTYPES: Final = frozenset({"to", "dtype", "output_dtype"})
_PLAIN_FLOATS: Final = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)


def constant_bytes(model: ir.Model, token: CancellationToken = NEVER) -> int:
    """Bytes of all initializers."""
    tensors = (
        value.const_value
        for graph in scope.graphs(model, token)
        for value in token.checked(graph.initializers.values())
    )
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def jittered(model: ir.Model, seed: int, units: int = 1, token: CancellationToken = NEVER) -> ir.Model:
    """A copy whose large float constants are moved by up to so many units in the last place, up or down."""
    copy = load(model, token)
    rng = np.random.default_rng(seed)
    _replace_constants(copy, lambda tensor: _jittered_tensor(tensor, rng, units, token), token)
    nodes = [node for graph in scope.graphs(copy, token) for node in graph]
    if any(node.op_type in {*_KERNEL_ERRORS, _DFT} for node in nodes):
        infer_model(copy, token)
    for number, node in enumerate(token.checked(nodes)):
        _move_places(node, units)
        of_node = copy.opset_imports.get("", 1), seed * 100_003 + number, units
        _move_result(node, *of_node)
        _move_transform(node, *of_node)
    return copy


def _move_result(node: ir.Node, opset: int, seed: int, units: int) -> None:
    """Move what a node gives by as much as its kernel errs, at random; a zero is exact."""
    if node.domain or node.op_type not in _KERNEL_ERRORS or opset < _BROADCASTING:
        return
    if node.outputs[0].dtype != ir.DataType.FLOAT:
        return
    error, least = _KERNEL_ERRORS[node.op_type]
    most = units * error * 2.0**-24
    write = NodeWriter(node, opset)
    result = write(node.op_type, node.inputs[0])
    drawn = write("RandomUniformLike", result, low=-most, high=most, seed=float(seed), dtype=ir.DataType.FLOAT.value)
    moved = write("Add", result, write("Mul", drawn, write("Sign", result)))
    floored = write("Max", moved, write.constant(least, np.float32))
    write.become(write("Min", floored, write.constant(1.0, np.float32)))


def _move_transform(node: ir.Node, opset: int, seed: int, units: int) -> None:
    """Move what a DFT of a length that is no power of two gives by as much as its kernel errs, at random."""
    if node.domain or node.op_type != _DFT or node.outputs[0].dtype != ir.DataType.FLOAT:
        return
    axis = _axis(node, opset)
    length = 0 if axis is None else _length(node, axis)
    if axis is None or not length & (length - 1):
        return
    most = units * _DFT_ERROR * min(length, _LONGEST_DFT) * 2.0**-24
    write = NodeWriter(node, opset)
    result = write(_DFT, *node.inputs, **{name: one.value for name, one in node.attributes.items()})
    drawn = write("RandomUniformLike", result, low=-most, high=most, seed=float(seed), dtype=ir.DataType.FLOAT.value)
    bounds = (write.constant([number], np.int64) for number in (1, np.iinfo(np.int64).max, axis))
    others = write("Abs", write("Slice", result, *bounds))
    along = write.constant([axis, -1], np.int64)
    if opset >= _AXES_ARE_AN_INPUT_FROM:
        scale = write("ReduceMax", others, along, keepdims=1)
    else:
        scale = write("ReduceMax", others, axes=[axis, -1], keepdims=1)
    write.become(write("Add", result, write("Mul", drawn, scale)))


def _axis(node: ir.Node, opset: int) -> int | None:
    """The axis of a DFT, or None where that is computed."""
    if opset < DFT_AXIS_IS_AN_INPUT_FROM:
        attribute = node.attributes.get("axis")
        return 1 if attribute is None else attribute.as_int()
    if len(node.inputs) <= _NAMED_AXIS or node.inputs[_NAMED_AXIS] is None:
        return -2
    named = constant_tensor(node.inputs[_NAMED_AXIS])
    return None if named is None else int(named.numpy().reshape(-1)[0])


def _length(node: ir.Node, axis: int) -> int:
    """How many numbers a DFT transforms, or 0 where that is not known, or too few."""
    asked = constant_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    if asked is not None:
        return int(asked.numpy().reshape(-1)[0])
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    length = None if shape is None else shape[axis]
    flags = (node.attributes.get(name) for name in ("inverse", "onesided"))
    is_half = all(flag is not None and flag.value for flag in flags)
    if not isinstance(length, int) or length < 2:
        return 0
    return 2 * (length - 1) if is_half else length


def _move_places(node: ir.Node, units: int) -> None:
    """Move the scales of a Resize that interpolates, where whole numbers that are no powers of two are among them.

    Its kernel computes where in the image an element of the result lies, in single precision: the place is off by the
    last digit of a row's number, as it is with such scales. Powers of two round nothing; with other fractions, moved
    scales might change the size of the result.
    """
    if node.op_identifier()[:2] != ("", "Resize") or len(node.inputs) <= _SCALES or node.inputs[_SCALES] is None:
        return
    mode = node.attributes.get("mode")
    tensor = ir.convenience.get_const_tensor(node.inputs[_SCALES])
    if mode is None or mode.is_ref() or mode.as_string() not in ("linear", "cubic") or tensor is None:
        return
    scales = tensor.numpy()
    moves = (scales > 1) & (scales == np.floor(scales)) & (np.log2(np.maximum(scales, 1)) % 1 != 0)
    if scales.dtype == np.float32 and moves.any():
        bits = scales.view(np.uint32) + np.where(moves, units, 0).astype(np.uint32)
        held = ir.node("Constant", [], {"value": ir.Tensor(bits.view(np.float32))})
        assert node.graph is not None
        node.graph.insert_before(node, held)
        node.replace_input_with(_SCALES, held.outputs[0])


def jittered_inputs(
    inputs: Mapping[str, Any], seed: int, units: int = 1, token: CancellationToken = NEVER, *, small: bool = False
) -> dict[str, Any]:
    """The same for inputs: arrays by name, or lists of them.

    Args:
        inputs: The inputs.
        seed: Of what is drawn.
        units: By how many units in the last place they are moved, at most.
        token: Cancellation token.
        small: Whether those of few elements are moved, too.
    """
    rng = np.random.default_rng(seed)

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(item) for item in value]
        array = np.asarray(value)
        bits = next((bits for dtype, bits in _FLOATS.items() if array.dtype == dtype.numpy()), None)
        return (
            value if bits is None or (array.size < _SMALLEST and not small) else _moved(array, bits, rng, units, token)
        )

    return {name: moved(value) for name, value in inputs.items()}


def widened(model: ir.Model, token: CancellationToken = NEVER) -> ir.Model | None:
    """A copy that computes in a wider dtype: of 16 bits in float32, else of float32 in float64; None if there is none.

    Nothing is known about whether ONNX Runtime has the kernels.
    """
    dtypes = {value.dtype for value in (*model.graph.inputs, *model.graph.initializers.values())}
    for wider in (_WIDER_THAN_HALF, _WIDER_THAN_SINGLE):
        if not dtypes.isdisjoint(wider):
            return _recast(model, wider, token)
    return None


def widened_inputs(inputs: Mapping[str, Any], model: ir.Model) -> dict[str, Any]:
    """Inputs in the dtypes that a `widened` model takes."""
    dtypes = {value.name: value.dtype for value in model.graph.inputs}

    def cast(value: Any, dtype: ir.DataType | None) -> Any:
        if isinstance(value, list):
            return [cast(item, dtype) for item in value]
        array = np.asarray(value)
        floating = array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
        return array.astype(dtype.numpy()) if floating and dtype is not None else value

    return {name: cast(value, dtypes.get(name)) for name, value in inputs.items()}


def _recast(model: ir.Model, wider: Mapping[ir.DataType, ir.DataType], token: CancellationToken) -> ir.Model:
    copy = load(model, token)
    numbers = {dtype.value: other.value for dtype, other in wider.items()}
    _replace_constants(
        copy,
        lambda tensor: (
            ir.Tensor(tensor.numpy().astype(wider[tensor.dtype].numpy()), name=tensor.name)
            if tensor.dtype in wider
            else None
        ),
        token,
    )
    for graph in scope.graphs(copy, token):
        for value in token.checked((*graph.inputs, *graph.initializers.values())):
            _widen(value, wider)
        for node in token.checked(graph):
            for value in node.outputs:
                _widen(value, wider)
            for name, attribute in tuple(node.attributes.items()):
                if attribute.is_ref():
                    continue
                if attribute.type in _PLAIN_FLOATS and ir.DataType.FLOAT in wider and node.op_type == "Constant":
                    del node.attributes[name]
                    array = np.array(attribute.value, wider[ir.DataType.FLOAT].numpy())
                    node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(array))
                if name in _DTYPES and attribute.type == ir.AttributeType.INT:
                    number = attribute.as_int()
                    node.attributes[name] = ir.AttrInt64(name, numbers.get(number, number))
    return copy


def _widen(value: ir.Value, wider: Mapping[ir.DataType, ir.DataType]) -> None:
    if isinstance(value.type, ir.TensorType) and (dtype := wider.get(value.type.dtype)) is not None:
        value.type = ir.TensorType(dtype)


def _replace_constants(model: ir.Model, changed: Any, token: CancellationToken) -> None:
    """Put what ``changed`` makes of a tensor in its place, wherever it is not None."""
    for graph in scope.graphs(model, token):
        for value in token.checked(graph.initializers.values()):
            assert value.const_value is not None
            tensor = changed(value.const_value)
            if tensor is not None:
                value.const_value = tensor
        for node in token.checked(graph):
            for name, attribute in tuple(node.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    tensor = changed(attribute.as_tensor())
                    if tensor is not None:
                        node.attributes[name] = ir.AttrTensor(name, tensor)


def _jittered_tensor(
    tensor: ir.TensorProtocol, rng: np.random.Generator, units: int, token: CancellationToken
) -> ir.TensorProtocol | None:
    bits = _FLOATS.get(tensor.dtype)
    if bits is None or data_bytes(tensor.dtype, tensor.shape.numpy()) < _SMALLEST * tensor.dtype.itemsize:
        return None
    return ir.Tensor(_moved(tensor.numpy(), bits, rng, units, token), tensor.dtype, name=tensor.name)


def _moved(array: Array, bits: Any, rng: np.random.Generator, units: int, token: CancellationToken) -> Array:
    """Floats up to so many units in the last place away; zeros, NaN, infinities and what is near to them stay."""
    moved = np.array(array, order="C")
    flat = moved.reshape(-1)
    for start in range(0, flat.size, _PORTION):
        token.check()
        flat[start : start + _PORTION] = _portion_moved(flat[start : start + _PORTION], bits, rng, units)
    return moved


def _portion_moved(plain: Array, bits: Any, rng: np.random.Generator, units: int) -> Array:
    limits = ml_dtypes.finfo(plain.dtype)  # type: ignore[no-untyped-call]
    limit, small = float(limits.max) / 4, float(limits.smallest_normal)
    sizes = np.abs(plain.astype(np.float64))
    step = rng.integers(1, units + 1, plain.shape, dtype=bits)
    down = rng.integers(0, 2, plain.shape, dtype=np.int8).astype(bool)
    held = plain.view(bits)
    step[down] = ~step[down] + 1  # minus so many, modulo what the type holds
    step[~((sizes < limit) & (sizes > small))] = 0
    with np.errstate(over="ignore"):
        return np.asarray((held + step).view(plain.dtype))
