"""Graphs of any size on which an optimizer has work to do, and two models of real weight.

``python -m benchmarks.generators chain|stack|wide NODES OUT.onnx`` writes one of the three published graphs: their
weights are a few megabytes at most, so what an optimizer takes for them is the cost of their nodes.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_WIDTH = 16
_THIN = 4
_LONGEST = 512  # tokens that BERT has positions for
_BUNDLE = 64  # no value has thousands of uses, as in real graphs: ONNX Runtime took much longer with them
_OPSET = 17
_IR_VERSION = 8
Weights = Callable[[str, Sequence[int]], onnx.TensorProto]


class _Graph:
    """Nodes and initializers in the order in which they are asked for."""

    def __init__(self, weights: Weights) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._weights = weights

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The name of the output of a new node."""
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], f"{op}_{len(self.nodes)}", **attributes))
        return output

    def constant(self, name: str, value: object, dtype: str = "float32") -> str:
        """A new initializer with these values: exporters write a constant for each use, and share none."""
        unique = f"{name}.{len(self.initializers)}"
        self.initializers[unique] = numpy_helper.from_array(np.array(value, dtype), unique)
        return unique

    def weight(self, name: str, *dims: int) -> str:
        """An initializer whose values do not matter; asked for again, the same one."""
        if name not in self.initializers:
            self.initializers[name] = self._weights(name, dims)
        return name

    def model(self, inputs: Mapping[str, onnx.TypeProto], output: str, kind: onnx.TypeProto) -> onnx.ModelProto:
        """The whole model, of which `output` is the only output."""
        self.nodes.append(helper.make_node("Identity", [output], ["y"], "Output"))
        graph = helper.make_graph(
            self.nodes,
            "benchmark",
            [helper.make_value_info(name, type_) for name, type_ in inputs.items()],
            [helper.make_value_info("y", kind)],
            list(self.initializers.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


def drawn(name: str, dims: Sequence[int]) -> onnx.TensorProto:
    """A small float32 weight with values inside, the same for the same name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return numpy_helper.from_array(rng.standard_normal(dims, np.float32) * np.float32(0.05), name)


def chain(nodes: int) -> onnx.ModelProto:
    """One long line: constants to merge, pairs of Transpose and no-ops to remove, activations to keep.

    Args:
        nodes: How many nodes, exactly.
    """
    graph = _Graph(drawn)

    def with_constant(op: str, name: str, value: object) -> Callable[[str], str]:
        return lambda x: graph.add(op, x, graph.constant(name, value))

    links: tuple[Callable[[str], str], ...] = (
        lambda x: graph.add("Relu", x),
        lambda x: graph.add("Identity", x),
        with_constant("Add", "half", [0.5]),
        with_constant("Mul", "half", [0.5]),
        lambda x: graph.add("Transpose", x, perm=[1, 0]),
        lambda x: graph.add("Transpose", x, perm=[1, 0]),
        lambda x: graph.add("Sigmoid", x),
        with_constant("Mul", "one", [1.0]),
        with_constant("Add", "zero", [0.0]),
        with_constant("Dropout", "ratio", 0.5),
        lambda x: graph.add("Cast", x, to=TensorProto.FLOAT),
        lambda x: graph.add("Tanh", x),
        with_constant("Sub", "half", [0.5]),
        lambda x: graph.add("Relu", x),
        lambda x: graph.add("Relu", x),
    )
    x = "x"
    for place in range(nodes - 1):
        x = links[place % len(links)](x)
    # Cut between the two Transposes, the result has its dims the other way round.
    turned = (nodes - 1) % len(links) == 5
    return graph.model({"x": _floats("N", _WIDTH)}, x, _floats(*((_WIDTH, "N") if turned else ("N", _WIDTH))))


@dataclass(frozen=True)
class Transformer:
    """The shape of a transformer stack.

    Attributes:
        hidden: The width of the residual stream.
        heads: Attention heads; they divide `hidden`.
        inner: The width of the feed-forward layer.
        vocabulary: Rows of an embedding table in front, with a pooler at the end; 0 is neither of them.
    """

    hidden: int
    heads: int
    inner: int
    vocabulary: int = 0


SMALL = Transformer(hidden=8, heads=2, inner=16)
BERT_BASE = Transformer(hidden=768, heads=12, inner=3072, vocabulary=30522)
BIG = Transformer(hidden=2048, heads=16, inner=8192)


def stack(nodes: int) -> onnx.ModelProto:
    """A stack of transformer layers as exporters write them: attention, layer normalization and Gelu in single steps.

    Args:
        nodes: About how many nodes; whole layers are made, at least one.
    """
    per_layer = len(transformer(SMALL, 2).graph.node) - len(transformer(SMALL, 1).graph.node)
    return transformer(SMALL, max(1, round(nodes / per_layer)))


def transformer(shape: Transformer, layers: int, weights: Weights = drawn) -> onnx.ModelProto:
    """The stack with any sizes; batch and sequence are symbolic.

    Args:
        shape: The sizes.
        layers: How many.
        weights: Makes each weight from its name and dims.
    """
    graph = _Graph(weights)
    kind = _floats("batch", "seq", shape.hidden)
    if shape.vocabulary:
        inputs = {"input_ids": helper.make_tensor_type_proto(TensorProto.INT64, ["batch", "seq"])}
        x = _embedded(graph, shape)
    else:
        inputs = {"x": kind}
        x = "x"
    for layer in range(layers):
        x = _layer(graph, x, f"layer{layer}", shape)
    if shape.vocabulary:
        first = graph.add("Gather", x, graph.constant("first", 0, "int64"), axis=1)
        x = graph.add("Tanh", _linear(graph, first, "pooler", shape.hidden, shape.hidden))
        kind = _floats("batch", shape.hidden)
    return graph.model(inputs, x, kind)


def _embedded(graph: _Graph, shape: Transformer) -> str:
    words = graph.add("Gather", graph.weight("words", shape.vocabulary, shape.hidden), "input_ids")
    places = graph.weight("positions", _LONGEST, shape.hidden)
    start, axis = graph.constant("start", [0], "int64"), graph.constant("axis", [0], "int64")
    places = graph.add("Slice", places, start, _dim(graph, "input_ids", 1), axis)
    return _layer_norm(graph, graph.add("Add", words, places), "embeddings", shape.hidden)


def _layer(graph: _Graph, x: str, name: str, shape: Transformer) -> str:
    attended = _attention(graph, x, name, shape)
    x = _layer_norm(graph, graph.add("Add", attended, x), f"{name}.attention", shape.hidden)
    wide = _gelu(graph, _linear(graph, x, f"{name}.up", shape.hidden, shape.inner))
    narrow = _linear(graph, wide, f"{name}.down", shape.inner, shape.hidden)
    return _layer_norm(graph, graph.add("Add", narrow, x), f"{name}.output", shape.hidden)


def _attention(graph: _Graph, x: str, name: str, shape: Transformer) -> str:
    width = shape.hidden // shape.heads
    batch, seq = (_dim(graph, x, axis) for axis in (0, 1))
    heads, size = graph.constant("heads", [shape.heads], "int64"), graph.constant("head_size", [width], "int64")
    split = graph.add("Concat", batch, seq, heads, size, axis=0)
    parts = {
        part: _linear(graph, x, f"{name}.{part}", shape.hidden, shape.hidden) for part in ("query", "key", "value")
    }
    query, key, value = (
        graph.add("Transpose", graph.add("Reshape", parts[part], split), perm=perm)
        for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
    )
    scores = graph.add("Div", graph.add("MatMul", query, key), graph.constant("scale", float(np.sqrt(width))))
    context = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)
    joined = graph.add("Concat", batch, seq, graph.constant("hidden", [shape.hidden], "int64"), axis=0)
    context = graph.add("Reshape", graph.add("Transpose", context, perm=[0, 2, 1, 3]), joined)
    return _linear(graph, context, f"{name}.projection", shape.hidden, shape.hidden)


def _dim(graph: _Graph, x: str, axis: int) -> str:
    index = graph.add("Gather", graph.add("Shape", x), graph.constant(f"axis{axis}", axis, "int64"), axis=0)
    return graph.add("Unsqueeze", index, graph.constant("axes", [0], "int64"))


def _linear(graph: _Graph, x: str, name: str, rows: int, columns: int) -> str:
    product = graph.add("MatMul", x, graph.weight(f"{name}.weight", rows, columns))
    return graph.add("Add", graph.weight(f"{name}.bias", columns), product)


def _layer_norm(graph: _Graph, x: str, name: str, hidden: int) -> str:
    centred = graph.add("Sub", x, graph.add("ReduceMean", x, axes=[-1]))
    squared = graph.add("Pow", centred, graph.constant("two", 2.0))
    variance = graph.add("Add", graph.add("ReduceMean", squared, axes=[-1]), graph.constant("epsilon", 1e-12))
    normal = graph.add("Div", centred, graph.add("Sqrt", variance))
    scaled = graph.add("Mul", normal, graph.weight(f"{name}.norm.weight", hidden))
    return graph.add("Add", scaled, graph.weight(f"{name}.norm.bias", hidden))


def _gelu(graph: _Graph, x: str) -> str:
    erf = graph.add("Erf", graph.add("Div", x, graph.constant("root_two", float(np.sqrt(2.0)))))
    product = graph.add("Mul", x, graph.add("Add", erf, graph.constant("one", 1.0)))
    return graph.add("Mul", product, graph.constant("half", 0.5))


def wide(nodes: int) -> onnx.ModelProto:
    """Many branches side by side, every fourth repeating its neighbour; 64 start at one node and end in one Concat.

    There is no Add(MatMul) of rank two: ONNX Runtime took several times longer with it, for reasons that we have not
    found, and any other tool would look good beside it.

    Args:
        nodes: About how many nodes; whole branches are made, at least one.
    """
    graph = _Graph(drawn)
    branches = max(1, round((nodes - 2) / (9 + 2 / _BUNDLE)))
    joined = []
    for start in range(0, branches, _BUNDLE):
        root = graph.add("Add", "x", graph.constant("offset", [float(start)] * _WIDTH))
        members = range(start, min(start + _BUNDLE, branches))
        ends = [_branch(graph, root, place - 1 if place % 4 == 3 else place) for place in members]
        joined.append(graph.add("Concat", *ends, axis=1))
    whole = graph.add("Concat", *joined, axis=1)
    return graph.model({"x": _floats("N", _WIDTH)}, whole, _floats("N", branches * _THIN))


def _branch(graph: _Graph, x: str, seed: int) -> str:
    x = graph.add("MatMul", x, graph.weight(f"branch{seed}.weight", _WIDTH, _THIN))
    x = graph.add("Relu", x)
    x = graph.add("Identity", x)
    x = graph.add("Add", x, graph.constant("bias", [float(seed)] * _THIN))
    x = graph.add("Identity", x)
    x = graph.add("Transpose", x, perm=[1, 0])
    x = graph.add("Tanh", x)
    x = graph.add("Transpose", x, perm=[1, 0])
    return graph.add("Sigmoid", x)


GENERATORS: Mapping[str, Callable[[int], onnx.ModelProto]] = {"chain": chain, "stack": stack, "wide": wide}


def bert_base(out: Path) -> None:
    """Write a BERT-base of random weights: twelve layers, 438 MB, all of it inside the file.

    Args:
        out: The .onnx file.
    """
    rng = np.random.default_rng(0)

    def inline(name: str, dims: Sequence[int]) -> onnx.TensorProto:
        return helper.make_tensor(
            name, TensorProto.FLOAT, dims, rng.standard_normal(dims, np.float32).tobytes(), raw=True
        )

    out.write_bytes(transformer(BERT_BASE, 12, inline).SerializeToString())


def external(out: Path, size: int) -> None:
    """Write a transformer stack whose weights lie in ``OUT.data``.

    Args:
        out: The .onnx file.
        size: About how many bytes of weights; whole layers of 200 MB are made, at least one.
    """
    per_layer = 4 * (4 * BIG.hidden**2 + 2 * BIG.hidden * BIG.inner)
    rng = np.random.default_rng(0)
    data = out.with_name(f"{out.name}.data")
    with data.open("wb") as file:

        def outside(name: str, dims: Sequence[int]) -> onnx.TensorProto:
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
            tensor.data_location = TensorProto.EXTERNAL
            offset = -(-file.tell() // 4096) * 4096
            file.seek(offset)
            length = file.write(rng.standard_normal(dims, np.float32).tobytes())
            for key, value in (("location", data.name), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            return tensor

        model = transformer(BIG, max(1, round(size / per_layer)), outside)
    out.write_bytes(model.SerializeToString())


def _floats(*dims: int | str) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(TensorProto.FLOAT, dims)


if __name__ == "__main__":
    Path(sys.argv[3]).write_bytes(GENERATORS[sys.argv[1]](int(sys.argv[2])).SerializeToString())
