"""Ops of halves that become floats for the CPU, which computes what is around them in floats."""

from __future__ import annotations

from typing import Final

import numpy as np

from ortopt.analysis.costs import Form
from ortopt.cost_measurement.entries import Array, Entry, FormComparison, Given, cases, normal, shape, weight

_FORM: Final = "of halves as floats"
_NEWEST: Final = 23
"""The opset of Attention."""


def _gelu(given: Given) -> FormComparison:
    rows, columns = given["rows"], given["columns"]
    before, behind = "a = MatMul (x, w)", "y = MatMul (b, v)"
    middle = "c = Cast <to = 1> (a) d = Gelu (c) b = Cast <to = 10> (d)"
    weights = {"w": weight(64, columns).astype(np.float16), "v": weight(columns, 64).astype(np.float16)}
    return FormComparison(
        {"x": normal(1, rows, 64).astype(np.float16)},
        f"{before} b = Gelu (a) {behind}",
        f"{before} {middle} {behind}",
        weights,
        "float16[]",
        _NEWEST,
    )


def _attention(given: Given) -> FormComparison:
    """With a mask that is expanded: ONNX Runtime has a kernel of halves for that, and so takes that of Attention."""
    length, heads = given["length"], given["heads"]
    width = heads * 64
    weights = {name: weight(64, width).astype(np.float16) for name in ("wq", "wk", "wv")}
    weights |= {"wo": weight(width, 64).astype(np.float16), "all": shape(1, 1, length, length)}
    op = f"Attention <q_num_heads = {heads}, kv_num_heads = {heads}>"
    before = "q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv) m = Expand (mask, all)"
    floats = " ".join(f"{name}s = Cast <to = 1> ({name})" for name in "qkvm")
    return FormComparison(
        {"x": normal(1, length, 64).astype(np.float16), "mask": np.zeros((1, 1, 1, length), np.float16)},
        f"{before} o = {op} (q, k, v, m) y = MatMul (o, wo)",
        f"{before} {floats} os = {op} (qs, ks, vs, ms) o = Cast <to = 10> (os) y = MatMul (o, wo)",
        weights,
        "float16[]",
        _NEWEST,
    )


def _clip(given: Given) -> FormComparison:
    """Two Clips with the same bounds, between three convolutions, of which the first two take them in as floats."""
    channels, side = given["channels"], given["side"]
    clips = [f"{clipped} = Clip ({value}, low, high)" for value, clipped in ("ab", "cd")]
    singles = [
        f"{value}s = Cast <to = 1> ({value}) {clipped}s = Clip ({value}s, least, most) "
        f"{clipped} = Cast <to = 10> ({clipped}s)"
        for value, clipped in ("ab", "cd")
    ]
    nodes = "a = Conv (x, u) {} c = Conv (b, v) {} y = Conv (d, w)"
    weights: dict[str, Array] = {name: weight(channels, channels, 1, 1).astype(np.float16) for name in "uvw"}
    weights |= {"low": np.array(0, np.float16), "high": np.array(6, np.float16)}
    weights |= {"least": np.array(0, np.float32), "most": np.array(6, np.float32)}
    inputs: dict[str, Array] = {"x": normal(1, channels, side, side).astype(np.float16)}
    return FormComparison(inputs, nodes.format(*clips), nodes.format(*singles), weights, "float16[]", _NEWEST)


ENTRIES: Final = (
    Entry(
        Form("", "Gelu", _FORM),
        "Gelu of halves, which ONNX Runtime spells out in floats",
        _gelu,
        cases(rows=(1, 16, 128), columns=(256, 768, 3072)),
        as_loaded=True,
    ),
    Entry(
        Form("", "Attention", _FORM),
        "Attention of halves, between products that ONNX Runtime computes in floats",
        _attention,
        cases(length=(1, 16, 128), heads=(4, 12, 12)),
        as_loaded=True,
    ),
    Entry(
        Form("", "Clip", _FORM),
        "Clip of halves behind a convolution, which ONNX Runtime computes in floats apart from it",
        _clip,
        cases(channels=(32, 64, 256), side=(56, 28, 7)),
        as_loaded=True,
    ),
)
"""What is measured of halves."""

__all__ = ["ENTRIES"]
