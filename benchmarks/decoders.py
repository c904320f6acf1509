"""Decoders of realistic width, with random weights, as exports of Hugging Face's have their cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as make


@dataclass(frozen=True, slots=True)
class Decoder:
    """The sizes of a decoder.

    Attributes:
        layers: How many.
        heads: Of the queries.
        key_heads: Of keys and values.
        size: Of a head.
        inner: Of the feed-forward part.
    """

    layers: int
    heads: int
    key_heads: int
    size: int
    inner: int


WIDE = {
    "wide_12_heads": Decoder(4, 12, 12, 64, 3072),
    "wide_16_heads_4_of_keys": Decoder(4, 16, 4, 64, 2816),
    "wide_16_heads_of_128": Decoder(2, 16, 16, 128, 5504),
}
VOCABULARY = 2000


class _Writer:
    """Collects the nodes and weights of a decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._rng = np.random.default_rng(0)
        self._number = 0

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node; its output."""
        self._number += 1
        name: str = attributes.pop("name", f"v{self._number}")
        self.nodes.append(make.make_node(op, inputs, [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """Random weights."""
        return self.constant(self._rng.standard_normal(shape, np.float32) * (shape[0] ** -0.5))

    def constant(self, content: Any, dtype: Any = np.float32) -> str:
        """An initializer."""
        self._number += 1
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(content, dtype), f"w{self._number}"))
        return f"w{self._number}"

    def ints(self, *numbers: int) -> str:
        """An initializer of integers."""
        return self.constant(numbers, np.int64)

    def heads(self, x: str, width: int, heads: int) -> str:
        """A linear layer, with its heads apart."""
        d = self.decoder
        y = self.add("MatMul", x, self.weight(width, heads * d.size))
        return self.add("Transpose", self.add("Reshape", y, self.ints(0, 0, heads, d.size)), perm=[0, 2, 1, 3])

    def cached(self, new: str, name: str) -> str:
        """Past and new, one behind the other."""
        shape: list[str | int | None] = ["batch", self.decoder.key_heads, "past", self.decoder.size]
        self.inputs.append(make.make_tensor_value_info(f"past_{name}", 1, shape))
        total: list[str | int | None] = ["batch", self.decoder.key_heads, "past_plus_seq", self.decoder.size]
        self.outputs.append(make.make_tensor_value_info(f"present_{name}", 1, total))
        return self.add("Concat", f"past_{name}", new, axis=2, name=f"present_{name}")

    def repeated(self, x: str) -> str:
        """Keys or values, once for each head of the queries."""
        d = self.decoder
        if d.key_heads == d.heads:
            return x
        wide = self.ints(1, 1, d.heads // d.key_heads, 1, 1)
        y = self.add("Expand", self.add("Unsqueeze", x, self.ints(2)), wide)
        return self.add("Reshape", y, self.ints(0, d.heads, -1, d.size))

    def layer(self, x: str, mask: str, number: int) -> str:
        """A layer of a decoder."""
        d, width = self.decoder, self.decoder.heads * self.decoder.size
        y = self.add("LayerNormalization", x, self.constant(np.ones(width)), self.constant(np.zeros(width)), axis=-1)
        q = self.heads(y, width, d.heads)
        k = self.repeated(self.cached(self.heads(y, width, d.key_heads), f"key_{number}"))
        v = self.repeated(self.cached(self.heads(y, width, d.key_heads), f"value_{number}"))
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.add("Add", self.add("Mul", scores, self.constant(d.size**-0.5)), mask)
        y = self.add("Transpose", self.add("MatMul", self.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        y = self.add("Reshape", y, self.ints(0, 0, width))
        x = self.add("Add", x, self.add("MatMul", y, self.weight(width, width)))
        y = self.add("LayerNormalization", x, self.constant(np.ones(width)), self.constant(np.zeros(width)), axis=-1)
        y = self.add("Relu", self.add("MatMul", y, self.weight(width, d.inner)))
        return self.add("Add", x, self.add("MatMul", y, self.weight(d.inner, width)))


def write(decoder: Decoder, path: Path) -> Path:
    """Write a decoder's model."""
    w = _Writer(decoder)
    width = decoder.heads * decoder.size
    w.inputs += [
        make.make_tensor_value_info("input_ids", 7, ["batch", "seq"]),
        make.make_tensor_value_info("attention_mask", 7, ["batch", "past_plus_seq"]),
    ]
    total = w.add("Shape", "attention_mask", start=1, end=2)
    new = w.add("Shape", "input_ids", start=1, end=2)
    scalars = [w.add("Squeeze", each) for each in (w.add("Sub", total, new), total)]
    zero, one = w.constant(0, np.int64), w.constant(1, np.int64)
    rows = w.add("Unsqueeze", w.add("Range", scalars[0], scalars[1], one), w.ints(1))
    causal = w.add("LessOrEqual", w.add("Range", zero, scalars[1], one), rows)
    kept = w.add("Unsqueeze", w.add("Cast", "attention_mask", to=9), w.ints(1, 2))
    allowed = w.add("And", w.add("Unsqueeze", causal, w.ints(0, 1)), kept)
    mask = w.add("Where", allowed, w.constant(0), w.constant(np.finfo(np.float32).min))
    x = w.add("Gather", w.weight(VOCABULARY, width), "input_ids")
    for number in range(decoder.layers):
        x = w.layer(x, mask, number)
    w.add("MatMul", x, w.weight(width, VOCABULARY), name="logits")
    logits = make.make_tensor_value_info("logits", 1, ["batch", "seq", VOCABULARY])
    graph = make.make_graph(w.nodes, "decoder", w.inputs, [logits, *w.outputs], w.weights)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return path


__all__ = ["WIDE", "Decoder", "write"]
