"""Kernels of integers, against the quantized units of which ONNX Runtime makes such kernels when it loads a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ortopt.analysis.costs import Form
from ortopt.cost_measurement.entries import Array, Entry, FormComparison, Given, cases, integers, normal, scalars
from ortopt.semantics.domains import MICROSOFT

_SAME_AT_LOAD: Final = "of which ONNX Runtime makes the same kernel when it loads a model"
_SIGNED: Final = "of signed integers"
_PREFERS_UNSIGNED: Final = (
    "a unit that ONNX Runtime gives unsigned integers when it loads a model, where the processor prefers them"
)

_Kind = type[np.generic]
_Builder = Callable[[Given, Any], FormComparison]

_ELEMENTS: Final = cases(rows=(16, 64), columns=(256, 3136))
_IMAGES: Final = cases(channels=(32, 128, 512), side=(56, 28, 7))
_SHAPES: Final = cases(rows=(1, 16, 128), columns=(256, 256, 256), outputs=(256, 256, 256))
_IN: Final = "xs, xz"
_OUT: Final = "ys, yz"


def _scales(kind: _Kind) -> dict[str, Array]:
    """Scales and zero points of operands and results."""
    middle = 0 if np.issubdtype(kind, np.signedinteger) else 128
    points = {name: np.full((), middle, kind) for name in ("xz", "zz", "yz")}
    return points | scalars(xs=0.02, zs=0.03, ys=0.04, ws=0.005, bs=1e-4) | {"wz": np.zeros((), np.int8)}


def _numbers(kind: _Kind, *shape: int) -> Array:
    low = -128 if np.issubdtype(kind, np.signedinteger) else 0
    return integers(kind, low, low + 256, *shape)


def _result(kind: _Kind) -> str:
    return "int8[]" if np.issubdtype(kind, np.signedinteger) else "uint8[]"


def _unary(op: str, attributes: str = "", extra: str = "") -> _Builder:
    """An op of one operand; `extra` are attributes of the quantized kernel alone."""

    def build(given: Given, kind: _Kind) -> FormComparison:
        image = (1, *(given[name] for name in ("channels", "side", "side") if name in given))
        x = _numbers(kind, *(image if "side" in given else (given["rows"], given["columns"])))
        own = f"<{attributes}>" if attributes else ""
        both = ", ".join(part for part in (attributes, extra) if part)
        before = f"f = DequantizeLinear (x, {_IN}) g = {op} {own} (f) y = QuantizeLinear (g, {_OUT})"
        after = f"y = {MICROSOFT}.QLinear{op} {f'<{both}>' if both else ''} (x, {_IN}, {_OUT})"
        return FormComparison({"x": x}, before, after, _scales(kind), _result(kind))

    return build


def _apart(op: str, attributes: str) -> Callable[[Given], FormComparison]:
    """An op that a Sum keeps apart from its quantization, against the kernel that ONNX Runtime makes of the unit."""
    kernel = _unary(op, attributes)

    def build(given: Given) -> FormComparison:
        forms = kernel(given, np.uint8)
        return replace(forms, after=_with_sum(forms.before))

    return build


def _slow(op: str, attributes: str, extra: str) -> _Builder:
    """A kernel against the ops on floats that a Sum keeps apart."""
    kernel = _unary(op, attributes, extra)

    def build(given: Given, kind: _Kind) -> FormComparison:
        forms = kernel(given, kind)
        return replace(forms, before=_with_sum(forms.before))

    return build


def _with_sum(unit: str) -> str:
    """A unit whose smaller floats go through a Sum: those before a Softmax are in the cache."""
    if "Softmax" in unit:
        return unit.replace("(f)", "(h)").replace("g =", "h = Sum (f) g =")
    return unit.replace("QuantizeLinear (g,", "QuantizeLinear (h,").replace("y =", "h = Sum (g) y =")


def _binary(op: str) -> _Builder:
    def build(given: Given, kind: _Kind) -> FormComparison:
        shape = given["rows"], given["columns"]
        inputs = {"x": _numbers(kind, *shape), "z": _numbers(kind, *shape)[::-1].copy()}
        before = f"""f = DequantizeLinear (x, {_IN}) e = DequantizeLinear (z, zs, zz) g = {op} (f, e)
            y = QuantizeLinear (g, {_OUT})"""
        after = f"y = {MICROSOFT}.QLinear{op} (x, {_IN}, z, zs, zz, {_OUT})"
        return FormComparison(inputs, before, after, _scales(kind), _result(kind))

    return build


def _concat(given: Given, kind: _Kind) -> FormComparison:
    shape = given["rows"], given["columns"]
    inputs = {"x": _numbers(kind, *shape), "z": _numbers(kind, *shape)[::-1].copy()}
    before = f"""f = DequantizeLinear (x, {_IN}) e = DequantizeLinear (z, zs, zz) g = Concat <axis = 1> (f, e)
        y = QuantizeLinear (g, {_OUT})"""
    after = f"y = {MICROSOFT}.QLinearConcat <axis = 1> ({_OUT}, x, {_IN}, z, zs, zz)"
    return FormComparison(inputs, before, after, _scales(kind), _result(kind))


def _where(given: Given, kind: _Kind) -> FormComparison:
    shape = given["rows"], given["columns"]
    inputs = {"c": normal(*shape) > 0, "x": _numbers(kind, *shape), "z": _numbers(kind, *shape)[::-1].copy()}
    before = f"""f = DequantizeLinear (x, {_IN}) e = DequantizeLinear (z, zs, zz) g = Where (c, f, e)
        y = QuantizeLinear (g, {_OUT})"""
    after = f"y = {MICROSOFT}.QLinearWhere (c, x, {_IN}, z, zs, zz, {_OUT})"
    return FormComparison(inputs, before, after, _scales(kind), _result(kind))


def _conv(given: Given, kind: _Kind) -> FormComparison:
    channels, side = given["channels"], given["side"]
    weights = _scales(kind) | {"w": integers(np.int8, -64, 64, channels, channels, 3, 3)}
    pads = "<pads = [1, 1, 1, 1]>"
    before = f"""f = DequantizeLinear (x, {_IN}) e = DequantizeLinear (w, ws, wz) g = Conv {pads} (f, e)
        y = QuantizeLinear (g, {_OUT})"""
    after = f"y = QLinearConv {pads} (x, {_IN}, w, ws, wz, {_OUT})"
    return FormComparison({"x": _numbers(kind, 1, channels, side, side)}, before, after, weights, _result(kind))


def _matmul(given: Given, kind: _Kind) -> FormComparison:
    rows, columns, outputs = given["rows"], given["columns"], given["outputs"]
    weights = _scales(kind) | {"w": integers(np.int8, -64, 64, columns, outputs)}
    before = f"""f = DequantizeLinear (x, {_IN}) e = DequantizeLinear (w, ws, wz) g = MatMul (f, e)
        y = QuantizeLinear (g, {_OUT})"""
    after = f"y = QLinearMatMul (x, {_IN}, w, ws, wz, {_OUT})"
    return FormComparison({"x": _numbers(kind, rows, columns)}, before, after, weights, _result(kind))


def _gemm(given: Given, kind: _Kind) -> FormComparison:
    rows, columns, outputs = given["rows"], given["columns"], given["outputs"]
    weights = _scales(kind) | {
        "w": integers(np.int8, -64, 64, columns, outputs),
        "b": integers(np.int32, -1000, 1000, outputs),
        "bz": np.zeros((), np.int32),
    }
    before = f"""f = DequantizeLinear (x, {_IN}) e = DequantizeLinear (w, ws, wz) d = DequantizeLinear (b, bs, bz)
        g = Gemm (f, e, d) y = QuantizeLinear (g, {_OUT})"""
    after = f"y = {MICROSOFT}.QGemm (x, {_IN}, w, ws, wz, b, {_OUT})"
    return FormComparison({"x": _numbers(kind, rows, columns)}, before, after, weights, _result(kind))


def _dynamic(given: Given) -> FormComparison:
    rows, columns, outputs = given["rows"], given["columns"], given["outputs"]
    weights = _scales(np.uint8) | {"w": integers(np.int8, -64, 64, columns, outputs)}
    before = """q, s, z = DynamicQuantizeLinear (x) i = MatMulInteger (q, w, z, wz) c = Cast <to = 1> (i)
        m = Mul (s, ws) y = Mul (c, m)"""
    after = f"y = {MICROSOFT}.DynamicQuantizeMatMul (x, w, ws, wz)"
    return FormComparison({"x": normal(rows, columns)}, before, after, weights)


def _to_float(given: Given, kind: _Kind) -> FormComparison:
    rows, columns, outputs = given["rows"], given["columns"], given["outputs"]
    weights = _scales(kind) | {"w": integers(np.int8, -64, 64, columns, outputs)}
    weights["both"] = weights["xs"] * weights["ws"]
    before = "i = MatMulInteger (x, w, xz, wz) c = Cast <to = 1> (i) y = Mul (c, both)"
    after = f"y = {MICROSOFT}.MatMulIntegerToFloat (x, w, xs, ws, xz, wz)"
    return FormComparison({"x": _numbers(kind, rows, columns)}, before, after, weights)


def _depthwise(given: Given) -> FormComparison:
    """The same integers in a ConvInteger and in a Conv of floats, each with its own weight for each channel."""
    channels, side = given["channels"], given["side"]
    w = integers(np.int8, -64, 64, channels, 1, 3, 3)
    weights = _scales(np.uint8) | {"w": (w.astype(np.int16) + 128).astype(np.uint8), "f": w.astype(np.float32)}
    weights |= {"one": np.ones((), np.float32)}
    attributes = f"<group = {channels}, pads = [1, 1, 1, 1]>"
    before = f"i = ConvInteger {attributes} (x, w, xz, xz) y = Cast <to = 1> (i)"
    after = f"d = DequantizeLinear (x, one, xz) y = Conv {attributes} (d, f)"
    return FormComparison({"x": _numbers(np.uint8, 1, channels, side, side)}, before, after, weights)


def _integer_conv(given: Given) -> FormComparison:
    channels, side = given["channels"], given["side"]
    w = integers(np.int8, -64, 64, channels, channels, 3, 3)
    weights = _scales(np.uint8) | {"w": w, "u": (w.astype(np.int16) + 128).astype(np.uint8)}
    pads = "<pads = [1, 1, 1, 1]>"
    before, after = (f"y = ConvInteger {pads} (x, {operands})" for operands in ("w, xz, wz", "u, xz, xz"))
    return FormComparison({"x": _numbers(np.uint8, 1, channels, side, side)}, before, after, weights, "int32[]")


def _of(build: _Builder, kind: _Kind) -> Callable[[Given], FormComparison]:
    return lambda given: build(given, kind)


_UNITS: Final[tuple[tuple[str, str, str, _Builder, tuple[Given, ...]], ...]] = (
    ("", "QLinearConv", "Conv", _conv, _IMAGES),
    ("", "QLinearMatMul", "MatMul", _matmul, _SHAPES),
    (MICROSOFT, "QGemm", "Gemm", _gemm, _SHAPES),
    (MICROSOFT, "QLinearAdd", "Add", _binary("Add"), _ELEMENTS),
    (MICROSOFT, "QLinearMul", "Mul", _binary("Mul"), _ELEMENTS),
    (MICROSOFT, "QLinearConcat", "Concat", _concat, _ELEMENTS),
    (MICROSOFT, "QLinearWhere", "Where", _where, _ELEMENTS),
    (MICROSOFT, "QLinearSigmoid", "Sigmoid", _unary("Sigmoid"), _ELEMENTS),
    (MICROSOFT, "QLinearLeakyRelu", "LeakyRelu", _unary("LeakyRelu", "alpha = 0.1"), _ELEMENTS),
    (MICROSOFT, "QLinearGlobalAveragePool", "GlobalAveragePool", _unary("GlobalAveragePool"), _IMAGES),
)
"""Of each quantized unit the kernel's domain and op, the op in floats, the models and the sizes."""

_SLOW: Final[tuple[tuple[str, str, str, tuple[Given, ...]], ...]] = (
    (
        "Softmax",
        "axis = -1",
        "opset = 18",
        cases(rows=(16, 4, 64, 192, 1536), columns=(16, 128, 16, 64, 128), elements=(256, 512, 1024, 12288, 196608)),
    ),
    ("AveragePool", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]", "", _IMAGES),
)
"""Units whose kernel is slower than their ops on floats: the op, its attributes, the kernel's own, the sizes."""

ENTRIES: Final = (
    *(
        Entry(
            Form(domain, op),
            f"DequantizeLinear, {of} and QuantizeLinear, {_SAME_AT_LOAD}",
            _of(build, np.uint8),
            sizes,
            as_loaded=True,
        )
        for domain, op, of, build, sizes in _UNITS
    ),
    *(
        Entry(Form(domain, op, _SIGNED), _PREFERS_UNSIGNED, _of(build, np.int8), sizes, as_loaded=True)
        for domain, op, _, build, sizes in _UNITS
    ),
    *(
        Entry(
            Form(MICROSOFT, f"QLinear{op}"),
            f"DequantizeLinear, {op}, Sum and QuantizeLinear, which ONNX Runtime leaves as they are",
            _of(_slow(op, attributes, extra), np.uint8),
            sizes,
            as_loaded=True,
        )
        for op, attributes, extra, sizes in _SLOW
    ),
    *(
        Entry(
            Form(MICROSOFT, f"QLinear{op}", _SIGNED),
            _PREFERS_UNSIGNED,
            _of(_unary(op, attributes, extra), np.int8),
            sizes,
            as_loaded=True,
        )
        for op, attributes, extra, sizes in _SLOW
    ),
    *(
        Entry(
            Form("", op, "apart from its quantization"),
            f"DequantizeLinear, {op} and QuantizeLinear, of which ONNX Runtime makes a kernel of integers when it "
            "loads a model",
            _apart(op, attributes),
            sizes,
            as_loaded=True,
        )
        for op, attributes, _, sizes in _SLOW
    ),
    Entry(
        Form(MICROSOFT, "DynamicQuantizeMatMul"),
        f"DynamicQuantizeLinear, MatMulInteger, Cast and Mul, {_SAME_AT_LOAD}",
        _dynamic,
        _SHAPES,
        as_loaded=True,
    ),
    Entry(
        Form(MICROSOFT, "MatMulIntegerToFloat"),
        f"MatMulInteger, Cast and Mul, {_SAME_AT_LOAD}",
        _of(_to_float, np.uint8),
        _SHAPES,
        as_loaded=True,
    ),
    Entry(
        Form(MICROSOFT, "MatMulIntegerToFloat", _SIGNED),
        _PREFERS_UNSIGNED,
        _of(_to_float, np.int8),
        _SHAPES,
        as_loaded=True,
    ),
    Entry(
        Form("", "Conv", "instead of ConvInteger"),
        "ConvInteger with at most 3 channels a group",
        _depthwise,
        cases(channels=(32, 128, 512), side=(56, 28, 7), group=(1, 1, 1)),
        as_loaded=True,
    ),
    Entry(Form("", "ConvInteger", "of unsigned weights"), "ConvInteger by signed weights", _integer_conv, _IMAGES),
)
"""What is measured of quantized units."""

__all__ = ["ENTRIES"]
