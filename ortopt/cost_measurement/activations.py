"""Activations and normalizations that are one op, against their arithmetic."""

from __future__ import annotations

from typing import Final

import numpy as np

from ortopt.analysis.costs import Form
from ortopt.cost_measurement.entries import Entry, FormComparison, Given, cases, normal, scalars, shape
from ortopt.semantics.domains import MICROSOFT

_CONSTANTS: Final = scalars(
    r=1.4142135,
    one=1.0,
    half=0.5,
    three=3.0,
    k=0.044715,
    w=0.7978846,
    a=1.702,
    zero=0.0,
    two=2.0,
    eps=1e-5,
)
_ERF: Final = "h = Div (x, r) e = Erf (h) o = Add (e, one) p = Mul (x, o) y = Mul (p, half)"
_TANH: Final = """x3 = Pow (x, three) c = Mul (x3, k) s = Add (x, c) q = Mul (s, w) e = Tanh (q) o = Add (e, one)
    p = Mul (x, o) y = Mul (p, half)"""
_ROWS: Final = cases(rows=(1, 1, 16, 128), columns=(256, 3072, 768, 3072))
_BIAS_ROWS: Final = cases(rows=(1, 1, 2, 14, 64, 512), columns=(768, 3072, 768, 768, 3072, 3072))
_NORM_ROWS: Final = cases(rows=(1, 1, 16, 128), columns=(64, 768, 768, 2048))
_ELEMENTS: Final = cases(rows=(1, 16, 64), columns=(128, 768, 3136))


def _unary(
    name: str, instead_of: str, before: str, after: str, opset: int, sizes: tuple[Given, ...], domain: str = ""
) -> Entry:
    """An op of one operand."""

    def build(given: Given) -> FormComparison:
        inputs = {"x": normal(given["rows"], given["columns"])}
        return FormComparison(inputs, before, after, _CONSTANTS, opset=opset, repeats=True)

    return Entry(Form(domain, name), instead_of, build, sizes)


def _with_bias(name: str, plain: str, variant: str = "") -> Entry:
    """A Gelu with its bias inside."""

    def build(given: Given) -> FormComparison:
        inputs = {"x": normal(given["rows"], given["columns"])}
        before = f"t = Add (x, b) y = {MICROSOFT}.{plain} (t)"
        weights = {"b": normal(given["columns"])}
        return FormComparison(inputs, before, f"y = {MICROSOFT}.{name} (x, b)", weights, repeats=True)

    return Entry(Form(MICROSOFT, name, variant), f"Add and {plain}", build, _BIAS_ROWS)


def _norm(
    name: str, before: str, after: str, opset: int, domain: str = "", instead_of: str = "its arithmetic"
) -> Entry:
    """A normalization of rows; ``k`` is what a skip adds."""

    def build(given: Given) -> FormComparison:
        rows, columns = given["rows"], given["columns"]
        weights = _CONSTANTS | {
            "g": normal(columns),
            "b": normal(columns),
            "ax": shape(-1),
            "skip": normal(rows, columns),
        }
        return FormComparison({"x": normal(rows, columns)}, before, after, weights, opset=opset, repeats=True)

    return Entry(Form(domain, name), instead_of, build, _NORM_ROWS)


_LAYER: Final = """m = ReduceMean (x, ax) d = Sub (x, m) q = Pow (d, two) v = ReduceMean (q, ax) ve = Add (v, eps)
    st = Sqrt (ve) nn = Div (d, st) sc = Mul (nn, g) y = Add (sc, b)"""
_RMS: Final = """q = Pow (x, two) v = ReduceMean (q, ax) ve = Add (v, eps) st = Sqrt (ve) rc = Div (one, st)
    nn = Mul (x, rc) y = Mul (nn, g)"""
_ELU: Final = "m = Min (x, zero) e = Exp (m) d = Sub (e, one) y = Max (x, d)"
_EPSILON: Final = "<epsilon = 0.00001>"


def _held_scores(given: Given) -> FormComparison:
    """A Softmax of masked scores; held, none is so far below the greatest that it would be a denormal number."""
    rows = columns = given["rows"]
    weights = {"m": np.where(np.tri(rows, columns) > 0, 0, np.float32(-1e9)).astype(np.float32)} | scalars(
        c=81.0, f=2.0**-16
    )
    before = "a = Add (x, m) y = Softmax <axis = -1> (a)"
    after = """a = Add (x, m) t = ReduceMax <keepdims = 1> (a, ax) s = Abs (t) p = Mul (s, f) d = Max (p, c)
        l = Sub (t, d) h = Max (a, l) y = Softmax <axis = -1> (h)"""
    return FormComparison({"x": normal(8, rows, columns)}, before, after, weights | {"ax": shape(-1)})


def _scale_in_layers(given: Given) -> FormComparison:
    """QuickGelu between two small layers, which take its scale."""
    rows, columns, narrow, alpha = given["rows"], given["columns"], 8, np.float32(1.702)
    first, second = normal(narrow, columns), normal(columns, narrow) / np.float32(columns)
    weights = {"w": first, "v": second, "w1": first * alpha, "v1": second / alpha}
    gelu = f"{MICROSOFT}.QuickGelu"
    before = f"h = MatMul (x, w) g = {gelu} <alpha = 1.702> (h) y = MatMul (g, v)"
    after = f"h = MatMul (x, w1) g = {gelu} <alpha = 1.0> (h) y = MatMul (g, v1)"
    return FormComparison({"x": normal(rows, narrow)}, before, after, weights)


def _prelu(given: Given) -> FormComparison:
    channels, side = given["channels"], given["side"]
    weights = {"s": np.abs(normal(channels, 1, 1)) % np.float32(0.9)}
    return FormComparison(
        {"x": normal(1, channels, side, side)},
        "m = Mul (x, s) y = Max (x, m)",
        "y = PRelu (x, s)",
        weights,
        repeats=True,
    )


def _group_norm(given: Given) -> FormComparison:
    channels, side, groups = given["channels"], given["side"], 8
    weights = {
        "flat": shape(0, groups, -1),
        "full": shape(1, channels, side, side),
        "one": np.ones(groups, np.float32),
        "nul": np.zeros(groups, np.float32),
        "g": normal(channels),
        "b": normal(channels),
        "g4": normal(channels).reshape(channels, 1, 1),
        "b4": normal(channels).reshape(channels, 1, 1),
    }
    before = f"""r = Reshape (x, flat) n = InstanceNormalization {_EPSILON} (r, one, nul) q = Reshape (n, full)
        m = Mul (q, g4) y = Add (m, b4)"""
    after = f"y = GroupNormalization <num_groups = {groups}, epsilon = 0.00001> (x, g, b)"
    return FormComparison({"x": normal(1, channels, side, side)}, before, after, weights, opset=21, repeats=True)


def _embedding(given: Given) -> FormComparison:
    length, hidden, words = given["rows"], given["columns"], 1000
    inputs = {
        "x": (np.arange(length, dtype=np.int32) * 7 % words).reshape(1, length),
        "t": np.zeros((1, length), np.int32),
    }
    weights = {
        "w": normal(words, hidden),
        "p": normal(512, hidden),
        "s": normal(2, hidden),
        "g": normal(hidden),
        "b": normal(hidden),
        "ids": np.arange(length, dtype=np.int64).reshape(1, length),
    }
    before = """a = Gather (w, x) c = Gather (p, ids) d = Gather (s, t) e = Add (a, d) f = Add (e, c)
        y = LayerNormalization <axis = -1, epsilon = 0.00001> (f, g, b)"""
    after = f"y, mask = {MICROSOFT}.EmbedLayerNormalization {_EPSILON} (x, t, w, p, s, g, b)"
    return FormComparison(inputs, before, after, weights)


def _lrn(given: Given) -> FormComparison:
    """A normalization over windows of five channels."""
    channels, side = given["channels"], given["side"]
    weights = {**scalars(alpha=1e-4, one=1.0), "first": shape(1)}
    before = """s = Mul (x, alpha) q = Mul (s, x) u = Unsqueeze (q, first)
        p = AveragePool <kernel_shape = [5, 1, 1], pads = [2, 0, 0, 2, 0, 0], count_include_pad = 1> (u)
        m = Squeeze (p, first) o = Add (m, one) r = Sqrt (o) t = Sqrt (r) d = Mul (r, t) y = Div (x, d)"""
    return FormComparison({"x": normal(1, channels, side, side)}, before, "y = LRN <size = 5> (x)", weights)


ENTRIES: Final = (
    _unary("Gelu", "its arithmetic", _ERF, "y = Gelu (x)", 20, _ROWS),
    _unary("Gelu", "its arithmetic", _ERF, f"y = {MICROSOFT}.Gelu (x)", 18, _ROWS, MICROSOFT),
    _unary("FastGelu", "its arithmetic", _TANH, f"y = {MICROSOFT}.FastGelu (x)", 18, _ROWS, MICROSOFT),
    _unary(
        "QuickGelu",
        "Sigmoid and the products",
        "h = Mul (x, a) e = Sigmoid (h) y = Mul (x, e)",
        f"y = {MICROSOFT}.QuickGelu <alpha = 1.702> (x)",
        18,
        _ROWS,
        MICROSOFT,
    ),
    _unary("Swish", "Sigmoid and Mul", "e = Sigmoid (x) y = Mul (x, e)", "y = Swish (x)", 24, _ROWS),
    _unary("Elu", "Min, Exp, Sub and Max", _ELU, "y = Elu (x)", 18, _ELEMENTS),
    _unary("Celu", "Min, Exp, Sub and Max", _ELU, "y = Celu (x)", 18, _ELEMENTS),
    _unary(
        "Softplus", "Exp, Add and Log", "e = Exp (x) o = Add (e, one) y = Log (o)", "y = Softplus (x)", 18, _ELEMENTS
    ),
    _unary(
        "Mish",
        "Exp, Add, Log, Tanh and Mul",
        "e = Exp (x) o = Add (e, one) l = Log (o) t = Tanh (l) y = Mul (x, t)",
        "y = Mish (x)",
        18,
        _ELEMENTS,
    ),
    Entry(
        Form("", "LRN"),
        "AveragePool, Sqrt and Div",
        _lrn,
        cases(channels=(16, 64, 96, 192, 512), side=(8, 56, 27, 28, 14)),
        as_loaded=True,
    ),
    Entry(Form("", "PRelu"), "Mul and Max, or two Relus", _prelu, cases(channels=(64, 64, 16), side=(8, 56, 112))),
    Entry(
        Form("", "Softmax", "of held scores"), "Softmax of masked scores", _held_scores, cases(rows=(16, 64, 128, 512))
    ),
    Entry(
        Form(MICROSOFT, "QuickGelu", "with its scale in the layers"),
        "QuickGelu of another scale than 1",
        _scale_in_layers,
        cases(rows=(1, 16, 128, 512), columns=(2048, 3072, 3072, 2048)),
    ),
    _with_bias("BiasGelu", "Gelu"),
    _with_bias("FastGelu", "FastGelu", "with bias"),
    _norm("LayerNormalization", _LAYER, f"y = LayerNormalization {_EPSILON} (x, g, b)", 18),
    _norm("RMSNormalization", _RMS, f"y = RMSNormalization {_EPSILON} (x, g)", 23),
    _norm("SimplifiedLayerNormalization", _RMS, f"y = SimplifiedLayerNormalization {_EPSILON} (x, g)", 18),
    _norm(
        "SkipLayerNormalization",
        f"t = Add (x, skip) y = LayerNormalization {_EPSILON} (t, g, b)",
        f"y = {MICROSOFT}.SkipLayerNormalization {_EPSILON} (x, skip, g, b)",
        18,
        MICROSOFT,
        "Add and LayerNormalization",
    ),
    _norm(
        "SkipSimplifiedLayerNormalization",
        f"t = Add (x, skip) y = SimplifiedLayerNormalization {_EPSILON} (t, g)",
        f"y = {MICROSOFT}.SkipSimplifiedLayerNormalization {_EPSILON} (x, skip, g)",
        18,
        MICROSOFT,
        "Add and RMSNormalization",
    ),
    Entry(
        Form("", "GroupNormalization"),
        "Reshape, InstanceNormalization, Reshape, Mul and Add",
        _group_norm,
        cases(channels=(64, 64), side=(8, 32)),
    ),
    Entry(
        Form(MICROSOFT, "EmbedLayerNormalization"),
        "Gathers, Adds and LayerNormalization",
        _embedding,
        cases(rows=(1, 16, 128, 512), columns=(128, 768, 768, 768)),
    ),
)
"""What is measured of activations and normalizations."""

__all__ = ["ENTRIES"]
