"""Two tables, looked up one after the other, are one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import Absent, Refusal, attribute, inputs, is_op, is_used_once, need
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics import strings_of
from ortopt.semantics.domains import ML

KINDS = ("floats", "int64s", "strings")
DEFAULTS: dict[str, tuple[str, Any]] = {
    "floats": ("default_float", -0.0),
    "int64s": ("default_int64", -1),
    "strings": ("default_string", b"_Unused"),
}


class LabelEncoderFusion(RewriteRule[Match]):
    """``LabelEncoder(LabelEncoder(x))`` → one ``LabelEncoder``."""

    roots = ("ai.onnx.ml::LabelEncoder",)
    opsets = (2, NEWEST_OPSET)  # the first one had no tables
    lookback = 1

    def match(self, root: ir.Node) -> Match:
        """Values of the first table that can be told apart among the keys of the second."""
        (middle,) = inputs(root, 1)
        first = middle.producer()
        if not is_op(first, "LabelEncoder", domain=ML) or first.graph is not root.graph:
            raise Absent("no LabelEncoder comes before", middle)
        need(is_used_once(middle), "the first result is used elsewhere", middle)
        keys, results = _table(root, "keys"), _table(root, "values")
        labels, default = _table(first, "values"), _default(first)
        need(len(keys) == len(results), "the table is torn", root)
        need(len(_table(first, "keys")) == len(labels), "the table is torn", first)
        # ONNX Runtime reads the first of equal keys, onnx's reference the last.
        need(len(set(keys)) == len(keys), "a key is there twice", root)
        numbers = [item for item in (*labels, default, *keys) if isinstance(item, float)]
        need(not any(item != item for item in numbers), "it is not defined which key NaN is", root)  # noqa: PLR0124 -- NaN
        lookup = dict(zip(keys, results, strict=True))
        other = _default(root)
        composed = [lookup.get(label, other) for label in labels]
        kept = [item for name, item in first.attributes.items() if name.startswith("keys_")]
        attributes = (*kept, *_written(root, composed, lookup.get(default, other)))
        return Match((first, root), lambda: ir.Node(ML, "LabelEncoder", [first.inputs[0]], attributes))


def _table(node: ir.Node, side: str) -> tuple[Any, ...]:
    """Keys or values, from whichever attribute holds them; strings are bytes."""
    tensor: ir.TensorProtocol | None = attribute(node, f"{side}_tensor", None)
    if tensor is not None:
        return _elements(tensor)
    for kind in KINDS:
        listed: tuple[Any, ...] | None = attribute(node, f"{side}_{kind}", None)
        if listed is not None:
            return tuple(_plain(item) for item in listed)
    raise Refusal(f"it has no {side}", node)


def _default(node: ir.Node) -> Any:
    """What a key that is not there gives."""
    tensor: ir.TensorProtocol | None = attribute(node, "default_tensor", None)
    if tensor is not None:
        elements = _elements(tensor)
        need(len(elements) == 1, "the default is not one label", node)
        return elements[0]
    for kind in KINDS:
        if f"values_{kind}" in node.attributes:
            name, otherwise = DEFAULTS[kind]
            return _plain(attribute(node, name, otherwise))
    raise Refusal("the default is not known", node)


def _elements(tensor: ir.TensorProtocol) -> tuple[Any, ...]:
    if tensor.dtype == ir.DataType.STRING:
        return tuple(strings_of(tensor).reshape(-1).tolist())
    return tuple(tensor.numpy().reshape(-1).tolist())


def _plain(item: Any) -> Any:
    return item.encode() if isinstance(item, str) else item


def _written(root: ir.Node, items: Sequence[Any], default: Any) -> list[ir.Attr]:
    """Values and default in the spelling of the second encoder."""
    written: ir.TensorProtocol | None = attribute(root, "values_tensor", None)
    if written is not None:
        return [_tensor("values_tensor", items, written.dtype), _tensor("default_tensor", [default], written.dtype)]
    kind = next(kind for kind in KINDS if f"values_{kind}" in root.attributes)
    name, _ = DEFAULTS[kind]
    if kind == "strings":
        texts = [item.decode() for item in items]
        return [ir.AttrStrings("values_strings", texts), ir.AttrString(name, default.decode())]
    if kind == "int64s":
        return [ir.AttrInt64s("values_int64s", items), ir.AttrInt64(name, default)]
    return [ir.AttrFloat32s("values_floats", items), ir.AttrFloat32(name, default)]


def _tensor(name: str, items: Sequence[Any], dtype: ir.DataType) -> ir.Attr:
    if dtype == ir.DataType.STRING:
        return ir.AttrTensor(name, ir.StringTensor(list(items), shape=ir.Shape([len(items)])))
    return ir.AttrTensor(name, ir.Tensor(np.array(items, dtype.numpy()), dtype=dtype))
