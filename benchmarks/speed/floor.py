"""The floor of a model: its heavy nodes alone. `python -m benchmarks.speed.floor MODEL INPUTS OUT [--reachable]`.

Products of matrices, convolutions, recurrent and attention nodes keep their weights and sizes; everything else is gone.
What such a node reads is the result of the heavy node before it where only nodes that keep the shape lie between them
(activations, residual sums, normalizations: nothing is faster than nothing), else it is fed. So no rewrite of the rest
of the graph can be faster than the floor; one that changes the heavy nodes themselves can.

What is reachable is more: the floor with a kernel for each normalization, softmax, activation and rotation that the
model computes. It is asked of a result whose nodes are fused, for it has the kernels that it finds there: what is left
of a normalization in single ops is not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from benchmarks import tools
from ortopt.semantics.op_traits import TRANSCENDENTAL

_PRODUCTS = "Conv ConvTranspose Einsum FusedConv FusedGemm FusedMatMul Gemm MatMul MatMulBnb4 MatMulNBits"
_QUANTIZED = """
ConvInteger DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulInteger MatMulIntegerToFloat QAttention QGemm QLinearConv
QLinearMatMul
"""
_BLOCKS = "Attention GroupQueryAttention GRU LSTM MoE MultiHeadAttention QMoE RNN"
HEAVY: Final = frozenset(f"{_PRODUCTS} {_QUANTIZED} {_BLOCKS}".split())
"""Ops that compute products of many numbers."""

_ACTIVATIONS = """
BiasGelu BiasSplitGelu Clip FastGelu HardSigmoid HardSwish LeakyRelu PRelu QLinearLeakyRelu QLinearSigmoid QuickGelu
Relu
"""
_NORMALIZATIONS = """
GroupNorm GroupNormalization InstanceNormalization LayerNormalization LogSoftmax LpNormalization LRN QLinearSoftmax
RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization Softmax
"""
NEEDED: Final = HEAVY | TRANSCENDENTAL | frozenset(f"{_ACTIVATIONS} {_NORMALIZATIONS} RotaryEmbedding".split())
"""Ops that have to be computed as well, whatever the form of the graph: one kernel each."""

_FEWEST_NORMAL: Final = 0.999


@dataclass
class Floor:
    """A model of heavy nodes.

    Attributes:
        model: The model.
        feeds: What it is fed.
    """

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray[Any, Any]]


def floor(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray[Any, Any]], kept: frozenset[str] = HEAVY
) -> Floor | None:
    """The floor of a model at the sizes of some inputs; None where it has no heavy nodes, or they are in subgraphs.

    Args:
        model: The model, its constants folded.
        feeds: Its inputs.
        kept: Ops that are not left out: `HEAVY`, or `NEEDED` for what is reachable.
    """
    if not any(node.op_type in HEAVY for node in model.graph.node) or any(_has_body(node) for node in model.graph.node):
        return None
    values = _values(model, feeds)
    made = _Builder(model, values, kept, connected=True).build()
    if not _is_normal(made):  # without what lies between them, numbers may have become denormal, which is slow
        made = _Builder(model, values, kept, connected=False).build()
    return made


def _has_body(node: onnx.NodeProto) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _values(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Everything that the model computes."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    read = {name for node in whole.graph.node for name in node.input}
    inputs = [value for value in whole.graph.input if value.name in read]  # a folded constant may have left its input
    del whole.graph.input[:]
    whole.graph.input.extend(inputs)
    known = {value.name for value in whole.graph.output}
    whole.graph.output.extend(
        onnx.ValueInfoProto(name=name)
        for node in whole.graph.node
        for name in node.output
        if name and name not in known
    )
    session = _session(whole)
    wanted = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    given = {name: array for name, array in feeds.items() if name in wanted}
    return {**given, **dict(zip(names, session.run(None, given), strict=True))}


def _is_normal(made: Floor) -> bool:
    """Whether next to no number of the results is denormal."""
    for array in _session(made.model).run(None, made.feeds):
        if array.dtype.kind == "f" and array.size:
            small = (array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)
            if small.mean() > 1 - _FEWEST_NORMAL:
                return False
    return True


@dataclass
class _Builder:
    model: onnx.ModelProto
    values: Mapping[str, np.ndarray[Any, Any]]
    ops: frozenset[str]
    connected: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    fed: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.producers = {name: node for node in graph.node for name in node.output if name}
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.constants = set(self.weights)
        for node in graph.node:
            if all(name in self.constants for name in node.input if name) and node.op_type != "Constant":
                self.constants.update(name for name in node.output if name)

    def build(self) -> Floor:
        for node in self.model.graph.node:
            if self._is_kept(node) and not all(name in self.constants for name in node.output if name):
                self.nodes.append(self._heavy(node))
        read = {name for node in self.nodes for name in node.input}
        outputs = [name for node in self.nodes for name in node.output if name and name not in read]
        tensors = [self._weight(name) for name in sorted(read & self.constants)]
        graph = onnx.helper.make_graph(
            self.nodes,
            "floor",
            [self._info(name) for name in self.fed],
            [self._info(name) for name in outputs],
            tensors,
        )
        made = onnx.helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
        return Floor(made, self.fed)

    def _is_kept(self, node: onnx.NodeProto) -> bool:
        """Whether a node is in the floor; integers and single numbers are shapes, not what is activated."""
        if node.op_type not in self.ops:
            return False
        first = self.values.get(node.output[0])
        numbers = isinstance(first, np.ndarray) and first.size > 1 and first.dtype not in (np.int32, np.int64)
        return node.op_type in HEAVY or numbers

    def _heavy(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node without what was fused into it and can be left out, reading what there is."""
        made = onnx.NodeProto()
        made.CopyFrom(node)
        if node.op_type == "FusedConv" and "Relu" in self.ops:
            del made.input[3:]
        elif node.op_type == "FusedConv":
            made.op_type, made.domain = "Conv", ""
            del made.input[3:]
            attributes = [one for one in node.attribute if not one.name.startswith("activation")]
            del made.attribute[:]
            made.attribute.extend(attributes)
        for place, name in enumerate(made.input):
            if name and name not in self.constants:
                made.input[place] = self._source(name)
        self.kept.update(name for name in node.output if name)
        return made

    def _source(self, name: str) -> str:
        """What stands for a value: a heavy node's result of its shape, or what is fed under its own name."""
        found = next(self._behind(name, set()), None) if self.connected else None
        if found is not None:
            return found
        fed = f"{name}/fed" if name in self.kept else name  # a heavy node of the floor gives it as well
        self.fed[fed] = self.values[name]
        return fed

    def _behind(self, name: str, seen: set[str]) -> Iterator[str]:
        """Results of heavy nodes from which a value is computed by nodes that keep their shape."""
        if name in self.kept:
            yield name
        elif name not in seen and name in self.producers and self.producers[name].op_type not in self.ops:
            seen.add(name)
            for source in self.producers[name].input:
                if source and source not in self.constants and self._alike(source, name):
                    yield from self._behind(source, seen)

    def _alike(self, one: str, other: str) -> bool:
        first, second = self.values.get(one), self.values.get(other)
        if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
            return False
        return bool(first.shape == second.shape and first.dtype == second.dtype)

    def _weight(self, name: str) -> onnx.TensorProto:
        known = self.weights.get(name)
        return known if known is not None else onnx.numpy_helper.from_array(self.values[name], name)

    def _info(self, name: str) -> onnx.ValueInfoProto:
        array = self.fed[name] if name in self.fed else self.values[name]
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return onnx.helper.make_tensor_value_info(name, kind, array.shape)


def main(arguments: Sequence[str]) -> None:
    """Write ``floor.onnx`` and its inputs below a folder, or nothing where there is no floor."""
    from ortopt.verification.input_sets import inputs_from, store_inputs

    source, inputs, out = map(Path, arguments[:3])
    out.mkdir(parents=True, exist_ok=True)
    quantized = any(node.op_type == "DequantizeLinear" for node in onnx.load(source).graph.node)
    folded = out / "folded.onnx"
    tools.work("ort_extended" if quantized else "ort_basic", str(source), str(folded))
    made = floor(onnx.load(folded), inputs_from(inputs), NEEDED if "--reachable" in arguments else HEAVY)
    if made is not None:
        onnx.save(made.model, out / "floor.onnx")
        store_inputs(made.feeds, out / "inputs")


if __name__ == "__main__":
    main(sys.argv[1:])
