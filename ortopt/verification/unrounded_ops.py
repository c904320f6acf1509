"""What ops on quantized integers compute, in floats and without rounding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.semantics.domains import MICROSOFT
from ortopt.terminal_text import quoted
from ortopt.verification.node_writer import NodeWriter

_RANGES: Final = {
    getattr(ir.DataType, f"{sign}INT{bits}"): (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (2, 4, 8, 16)
    for sign in ("", "U")
    if hasattr(ir.DataType, f"{sign}INT{bits}")
}
_SOFTMAX_OF_ONE_AXIS: Final = 13
_FLOAT: Final = ir.DataType.FLOAT
_TINY: Final = 1e-30
"""The scale of a tensor of zeros, instead of 0."""


class NoFormulaError(Exception):
    """A node on quantized integers that is not known in floats."""

    def __init__(self, node: ir.Node) -> None:
        domain = f"{quoted(node.domain)}::" if node.domain else ""
        super().__init__(f"{domain}{quoted(node.op_type)}")


class Formula(NodeWriter):
    """Writes what one node computes, in floats.

    Args:
        node: The node.
        opset: The opset of ai.onnx.
        unrounded: The values of integers that are floats by now.
    """

    def __init__(self, node: ir.Node, opset: int, unrounded: Collection[ir.Value]) -> None:
        super().__init__(node, opset)
        self._unrounded = unrounded

    def input(self, number: int) -> ir.Value | None:
        """An input, or None."""
        return self.node.inputs[number] if number < len(self.node.inputs) else None

    def is_unrounded(self, number: int) -> bool:
        """Whether an input is one of integers that are floats by now."""
        return self.input(number) in self._unrounded

    def needed(self, number: int) -> ir.Value:
        """An input that must be there."""
        value = self.input(number)
        if value is None:
            raise NoFormulaError(self.node)
        return value

    def floats(self, value: ir.Value) -> ir.Value:
        """A value as float32."""
        if value in self._unrounded:
            return value
        return value if value.dtype == _FLOAT else self.cast(value, _FLOAT)

    def aligned(self, value: ir.Value, axis: int, data: ir.Value) -> ir.Value:
        """One number, or one for each index of an axis, as it broadcasts to some data."""
        shape = value.shape
        if shape is None or len(shape) > 1:
            raise NoFormulaError(self.node)
        floats = self.floats(value)
        if len(shape) == 0 or shape[0] == 1:
            return floats if len(shape) == 0 else self("Reshape", floats, self.constant([], np.int64))
        if data.shape is None:
            raise NoFormulaError(self.node)
        after = (len(data.shape) - 1 - axis) % len(data.shape)
        return self("Reshape", floats, self.constant([-1, *[1] * after], np.int64))

    def real(self, first: int, axis: int = 0) -> ir.Value:
        """The numbers that integers stand for: inputs are the integers, their scale and their zero point."""
        return self.dequantized(self.needed(first), self.needed(first + 1), self.input(first + 2), axis)

    def dequantized(self, data: ir.Value, scale: ir.Value, zero: ir.Value | None, axis: int = 0) -> ir.Value:
        """The numbers that integers stand for."""
        return self("Mul", self.shifted(data, zero, axis), self.aligned(scale, axis, data))

    def shifted(self, data: ir.Value, zero: ir.Value | None, axis: int) -> ir.Value:
        """Integers without their zero point."""
        floats = self.floats(data)
        return floats if zero is None else self("Sub", floats, self.aligned(zero, axis, data))

    def quantized(
        self, numbers: ir.Value, scale: ir.Value, zero: ir.Value | None, axis: int, data: ir.Value
    ) -> ir.Value:
        """Numbers in units of a scale, within the bounds of the zero point's dtype; a NaN becomes one of them."""
        units = self("Div", numbers, self.aligned(scale, axis, data))
        if zero is not None:
            units = self("Add", units, self.aligned(zero, axis, data))
        low, high = (self.constant(bound, np.float32) for bound in self._bounds(zero))
        return self("Min", self("Where", self("IsNaN", units), low, self("Max", units, low)), high)

    def _bounds(self, zero: ir.Value | None) -> tuple[int, int]:
        dtype: ir.DataType | None = ir.DataType.UINT8
        if zero is not None:
            dtype = ir.DataType.UINT8 if zero in self._unrounded else zero.dtype
        elif number := self.node.attributes.get_int("output_dtype", 0):
            dtype = ir.DataType(number)
        if dtype not in _RANGES:
            raise NoFormulaError(self.node)
        return _RANGES[dtype]

    def give_quantized(self, numbers: ir.Value, number: int) -> tuple[ir.Value, ...]:
        """Let the node give numbers, quantized by inputs from this number on."""
        scale, zero = self.needed(number), self.input(number + 1)
        return self.give_integers(self.quantized(numbers, scale, zero, 0, numbers))

    def give_integers(self, numbers: ir.Value) -> tuple[ir.Value, ...]:
        """Let the node give floats that stand for integers."""
        self.become(numbers)
        return (self.node.outputs[0],)

    def give(self, numbers: ir.Value) -> tuple[ir.Value, ...]:
        """Let the node give floats that stand for no integers."""
        self.become(numbers)
        return ()

    def replace_by(self, values: Sequence[ir.Value]) -> None:
        """Put values in the place of the node's outputs, one by one, with their names and shapes."""
        node = self.node
        for old, new in zip(tuple(node.outputs), values, strict=False):
            name, new.shape, new.type = old.name, old.shape, old.type
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name, new.name = None, name
        assert node.graph is not None
        node.graph.remove(node, safe=False)

    def kept(self, *names: str) -> dict[str, Any]:
        """Attributes of the node, for another one."""
        return {name: self.node.attributes[name] for name in names if name in self.node.attributes}

    def flag(self, name: str) -> bool:
        """Whether an attribute is 1."""
        return bool(self.node.attributes.get_int(name, 0))


def _quantize(f: Formula) -> tuple[ir.Value, ...]:
    data, scale = f.needed(0), f.needed(1)
    if f.node.attributes.get_int("block_size", 0):
        raise NoFormulaError(f.node)
    axis = f.node.attributes.get_int("axis", 1)
    return f.give_integers(f.quantized(f.floats(data), scale, f.input(2), axis, data))


def _dequantize(f: Formula) -> tuple[ir.Value, ...]:
    scale = f.needed(1)
    if f.node.attributes.get_int("block_size", 0) or (f.is_unrounded(2) and not f.is_unrounded(0)):
        raise NoFormulaError(f.node)
    axis = f.node.attributes.get_int("axis", 1)
    return f.give(f.cast_like(f.dequantized(f.needed(0), scale, f.input(2), axis), scale))


def _quantize_dynamically(f: Formula) -> tuple[ir.Value, ...]:
    data = f.needed(0)
    zero = f.constant(0.0, np.float32)
    high = f("Max", f("ReduceMax", data, keepdims=0), zero)
    low = f("Min", f("ReduceMin", data, keepdims=0), zero)
    steps = f("Mul", f("Sub", high, low), f.constant(1 / 255, np.float32))
    scale = f("Max", steps, f.constant(_TINY, np.float32))
    point = f("Div", f("Neg", low), scale)
    named = [f("Identity", value) for value in (f("Add", f("Div", data, scale), point), scale, point)]
    f.replace_by(named)
    return named[0], named[2]


def _product(f: Formula, zero_a: ir.Value | None, zero_b: ir.Value | None) -> ir.Value:
    first, second = f.needed(0), f.needed(1)
    rows = (len(first.shape) if first.shape is not None else 2) - 2
    columns = (len(second.shape) if second.shape is not None else 2) - 1
    return f("MatMul", f.shifted(first, zero_a, rows), f.shifted(second, zero_b, columns))


def _multiply_integers(f: Formula) -> tuple[ir.Value, ...]:
    return f.give_integers(_product(f, f.input(2), f.input(3)))


def _multiply_to_floats(f: Formula) -> tuple[ir.Value, ...]:
    product = _product(f, f.input(4), f.input(5))
    scaled = f("Mul", f("Mul", product, f.floats(f.needed(2))), f.floats(f.needed(3)))
    bias = f.input(6)
    return f.give(scaled if bias is None else f("Add", scaled, bias))


def _multiply_dynamically(f: Formula) -> tuple[ir.Value, ...]:
    weights = f.needed(1)
    columns = (len(weights.shape) if weights.shape is not None else 2) - 1
    product = f("MatMul", f.needed(0), f.dequantized(weights, f.needed(2), f.input(3), columns))
    bias = f.input(4)
    return f.give(product if bias is None else f("Add", product, bias))


_CONVOLUTION: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _convolve_integers(f: Formula) -> tuple[ir.Value, ...]:
    data = f.shifted(f.needed(0), f.input(2), 1)
    weights = f.shifted(f.needed(1), f.input(3), 0)
    return f.give_integers(f("Conv", data, weights, **f.kept(*_CONVOLUTION)))


def _channels_first(f: Formula, value: ir.Value, like: ir.Value, *, back: bool = False) -> ir.Value:
    if like.shape is None:
        raise NoFormulaError(f.node)
    rank = len(like.shape)
    order = [0, *range(2, rank), 1] if back else [0, rank - 1, *range(1, rank - 1)]
    return f("Transpose", value, perm=order)


def _convolve(f: Formula) -> tuple[ir.Value, ...]:
    last, bias, source = f.flag("channels_last"), f.input(8), f.needed(0)
    data, weights = f.real(0), f.real(3)
    operands = [_channels_first(f, data, source) if last else data, weights]
    if bias is not None:
        unit = f("Mul", f.floats(f.needed(1)), f.floats(f.needed(4)))
        operands.append(f("Mul", f.floats(bias), f("Reshape", unit, f.constant([-1], np.int64))))
    result = f("Conv", *operands, **f.kept(*_CONVOLUTION))
    return f.give_quantized(_channels_first(f, result, source, back=True) if last else result, 6)


def _multiply(f: Formula) -> tuple[ir.Value, ...]:
    ranks = [2 if (shape := f.needed(number).shape) is None else len(shape) for number in (0, 3)]
    return f.give_quantized(f("MatMul", f.real(0, ranks[0] - 2), f.real(3, ranks[1] - 1)), 6)


def _of_two(op_type: str) -> Callable[[Formula], tuple[ir.Value, ...]]:
    return lambda f: f.give_quantized(f(op_type, f.real(0), f.real(3)), 6)


def _of_one(op_type: str, *attributes: str) -> Callable[[Formula], tuple[ir.Value, ...]]:
    def formula(f: Formula) -> tuple[ir.Value, ...]:
        source = f.needed(0)
        last = f.flag("channels_last")
        numbers = _channels_first(f, f.real(0), source) if last else f.real(0)
        numbers = f(op_type, numbers, **f.kept(*attributes))
        return f.give_quantized(_channels_first(f, numbers, source, back=True) if last else numbers, 3)

    return formula


def _softmax(f: Formula) -> tuple[ir.Value, ...]:
    source, axis = f.needed(0), f.node.attributes.get_int("axis", -1)
    last = source.shape is not None and axis in (-1, len(source.shape) - 1)
    coerces = f.opset < _SOFTMAX_OF_ONE_AXIS or f.node.attributes.get_int("opset", 0) < _SOFTMAX_OF_ONE_AXIS
    if coerces and not last:
        raise NoFormulaError(f.node)
    return f.give_quantized(f("Softmax", f.real(0), axis=axis), 3)


def _concat(f: Formula) -> tuple[ir.Value, ...]:
    parts = [f.real(number) for number in range(2, len(f.node.inputs), 3)]
    return f.give_quantized(f("Concat", *parts, axis=f.node.attributes.get_int("axis", 0)), 0)


def _where(f: Formula) -> tuple[ir.Value, ...]:
    return f.give_quantized(f("Where", f.needed(0), f.real(1), f.real(4)), 7)


def _gemm(f: Formula) -> tuple[ir.Value, ...]:
    alpha = f.node.attributes.get_float("alpha", 1.0)
    columns = 0 if f.flag("transB") else 1
    product = f("Gemm", f.real(0), f.real(3, columns), alpha=alpha, **f.kept("transA", "transB"))
    bias = f.input(6)
    if bias is not None:
        unit = f("Mul", f.floats(f.needed(1)), f.floats(f.needed(4)))
        product = f("Add", product, f("Mul", f("Mul", f.floats(bias), unit), f.constant(alpha, np.float32)))
    return f.give(product) if f.input(7) is None else f.give_quantized(product, 7)


def _lstm(f: Formula) -> tuple[ir.Value, ...]:
    node = f.node

    def weights(number: int, scale: int) -> ir.Value:
        data, by = f.needed(number), f.needed(scale)
        if by.shape is None or len(by.shape) > 2:
            raise NoFormulaError(node)
        shape = f.constant([0, 1, 1] if len(by.shape) == 1 else [0, 1, -1], np.int64)
        numbers, zero = f.floats(data), f.input(scale + 1)
        if zero is not None:
            numbers = f("Sub", numbers, f("Reshape", f.floats(zero), shape))
        return f("Transpose", f("Mul", numbers, f("Reshape", by, shape)), perm=[0, 2, 1])

    operands = [f.needed(0), weights(1, 8), weights(2, 10), *node.inputs[3:8]]
    results = f.several(len(node.outputs), "LSTM", *operands, **dict(node.attributes.items()))
    f.replace_by(results)
    return ()


def _attention(f: Formula) -> tuple[ir.Value, ...]:
    data, weights, bias, scale, weight_scale, mask, zero, weight_zero, past = (f.input(number) for number in range(9))
    if data is None or weights is None or scale is None or weight_scale is None:
        raise NoFormulaError(f.node)
    operands = f.dequantized(data, scale, zero), f.dequantized(weights, weight_scale, weight_zero, 1), bias, mask, past
    names = "num_heads", "unidirectional", "do_rotary", "mask_filter_value", "past_present_share_buffer", "scale"
    f.replace_by(f.several(len(f.node.outputs), "Attention", *operands, domain=MICROSOFT, **f.kept(*names)))
    return ()


def _cast(f: Formula) -> tuple[ir.Value, ...]:
    to = ir.DataType(f.node.attributes["to"].as_int())
    if to.is_floating_point():
        f.become(f.cast(f.needed(0), to))
        return ()
    if not to.is_integer():
        raise NoFormulaError(f.node)
    return f.give_integers(f.needed(0))


FORMULAS: Final[dict[tuple[str, str], Callable[[Formula], tuple[ir.Value, ...]]]] = {
    ("", "Cast"): _cast,
    ("", "ConvInteger"): _convolve_integers,
    ("", "DequantizeLinear"): _dequantize,
    ("", "DynamicQuantizeLinear"): _quantize_dynamically,
    ("", "MatMulInteger"): _multiply_integers,
    ("", "QLinearConv"): _convolve,
    ("", "QLinearMatMul"): _multiply,
    ("", "QuantizeLinear"): _quantize,
    (MICROSOFT, "DequantizeLinear"): _dequantize,
    (MICROSOFT, "DynamicQuantizeLSTM"): _lstm,
    (MICROSOFT, "DynamicQuantizeMatMul"): _multiply_dynamically,
    (MICROSOFT, "MatMulIntegerToFloat"): _multiply_to_floats,
    (MICROSOFT, "QAttention"): _attention,
    (MICROSOFT, "QGemm"): _gemm,
    (MICROSOFT, "QLinearAdd"): _of_two("Add"),
    (MICROSOFT, "QLinearAveragePool"): _of_one(
        "AveragePool", "auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"
    ),
    (MICROSOFT, "QLinearConcat"): _concat,
    (MICROSOFT, "QLinearConv"): _convolve,
    (MICROSOFT, "QLinearGlobalAveragePool"): _of_one("GlobalAveragePool"),
    (MICROSOFT, "QLinearLeakyRelu"): _of_one("LeakyRelu", "alpha"),
    (MICROSOFT, "QLinearMul"): _of_two("Mul"),
    (MICROSOFT, "QLinearSigmoid"): _of_one("Sigmoid"),
    (MICROSOFT, "QLinearSoftmax"): _softmax,
    (MICROSOFT, "QLinearWhere"): _where,
    (MICROSOFT, "QuantizeLinear"): _quantize,
}
"""By domain and op: writes the formula, and gives the outputs of the node that are quantized integers."""
