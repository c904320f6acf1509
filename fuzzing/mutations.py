"""Pieces of the zoo's models, changed so that passes meet what no exporter writes.

A model of the zoo runs once with all of its intermediate values as outputs. A piece of some ten nodes, with what it
reads as inputs, is a small model with real inputs, and quick; then nodes that change nothing are inserted, nodes are
doubled or taken apart, in nested graphs too, values become outputs, constants change a little.
"""

from __future__ import annotations

import copy
import functools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fuzzing.generator import Case
from fuzzing.oracle import run, session
from fuzzing.protos import graphs_of, kind_of, reads, subgraphs, watched
from fuzzing.writer import Array, Unsuitable
from ortopt import zoo

AT_ONCE: Final = 12
"""So many mutants in a row come of one model: running it whole is what takes time."""

_MAX_ELEMENTS: Final = 1 << 20
_MAX_RECORDED: Final = 1 << 28  # bytes; a model repeats its layers, and the first of them come first
_MAX_WEIGHTS: Final = 1 << 23
_ATTEMPTS: Final = 30


class Recording:
    """A model of the zoo and what its values are in one run.

    Args:
        name: The model's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        with tempfile.TemporaryDirectory(prefix="ortopt-fuzz-") as folder:
            path = zoo.grow(name, Path(folder) / "model.onnx")
            self.model = onnx.load(path)
        feeds = zoo.inputs(name)
        self.weights = {tensor.name: tensor for tensor in self.model.graph.initializer}
        runs = session(watched(self.model).SerializeToString())
        got = zip((one.name for one in runs.get_outputs()), run(runs, feeds), strict=True)
        self.values: dict[str, Array] = {}
        room = _MAX_RECORDED
        for each, value in (*feeds.items(), *got):
            if isinstance(value, np.ndarray | np.generic) and np.size(value) <= _MAX_ELEMENTS and value.nbytes <= room:
                self.values[each] = np.array(value)
                room -= value.nbytes
        self.opset = next(one.version for one in self.model.opset_import if one.domain in ("", "ai.onnx"))
        self.symbols: dict[int, str] = {}
        for info in self.model.graph.input:
            for dim, size in zip(info.type.tensor_type.shape.dim, np.shape(feeds.get(info.name, ())), strict=False):
                if dim.dim_param:
                    self.symbols.setdefault(size, f"d{size}")
        self.consumers: dict[str, list[int]] = {}
        for at, node in enumerate(self.model.graph.node):
            for each in reads([node]):
                self.consumers.setdefault(each, []).append(at)
        self.producers = {each: at for at, node in enumerate(self.model.graph.node) for each in node.output if each}


@functools.lru_cache(maxsize=2)
def recording(name: str) -> Recording:
    """The recording of a model, made once."""
    return Recording(name)


def mutated(seed: int, names: tuple[str, ...] | None = None) -> Case:
    """A changed piece of a zoo model: the same for the same seed.

    Args:
        seed: What to draw from.
        names: The models to choose from; all but the light ones if None.
    """
    chosen = names or tuple(name for name in zoo.names() if not name.startswith("light_"))
    name = chosen[(seed // 4 // AT_ONCE) % len(chosen)]
    record = recording(name)
    for attempt in range(_ATTEMPTS):
        draw = random.Random(f"{seed}/{attempt}/mutant")
        try:
            return _mutated(draw, record, seed)
        except Unsuitable:
            continue
    raise Unsuitable(f"no piece comes of seed {seed}")


def _mutated(draw: random.Random, record: Recording, seed: int) -> Case:
    model, feeds = piece(draw, record)
    mutator = Mutator(draw, model, record.values, record.opset)
    for _ in range(draw.choice((0, 1, 2, 3, 5, 8))):
        try:
            draw.choice(mutator.ways)()
        except Unsuitable:
            continue
    return Case(mutator.model, [feeds], 0, f"seed {seed}: a piece of {record.name}")


def _connected(draw: random.Random, record: Recording) -> set[int]:
    """Indices of some connected nodes."""
    nodes = record.model.graph.node
    chosen = {draw.randrange(len(nodes))}
    frontier = list(chosen)
    wanted = draw.choice((3, 6, 12, 20, 30, 45))
    while frontier and len(chosen) < wanted:
        at = frontier.pop(draw.randrange(len(frontier)) if draw.random() < 0.5 else 0)
        around = [record.producers[name] for name in reads([nodes[at]]) if name in record.producers]
        if draw.random() < 0.8:
            around += [user for name in nodes[at].output for user in record.consumers.get(name, ())][:6]
        for index in around:
            if index not in chosen and len(chosen) < wanted:
                chosen.add(index)
                frontier.append(index)
    return chosen


def piece(draw: random.Random, record: Recording) -> tuple[ModelProto, dict[str, Array]]:
    """Some connected nodes of a model as a model, and its inputs.

    Raises:
        Unsuitable: What was drawn is too large, or reads what was not recorded.
    """
    nodes = record.model.graph.node
    chosen = _connected(draw, record)
    taken = [nodes[at] for at in sorted(chosen)]
    made = {name for node in taken for name in node.output if name}
    feeds: dict[str, Array] = {}
    weights: dict[str, TensorProto] = {}
    for name in dict.fromkeys(reads(taken)):
        if name in made:
            continue
        if name in record.weights:
            weights[name] = record.weights[name]
        elif name in record.values:
            feeds[name] = record.values[name]
        elif name in record.producers or any(name == one.name for one in record.model.graph.input):
            raise Unsuitable
    if sum(len(one.raw_data) for one in weights.values()) > _MAX_WEIGHTS:
        raise Unsuitable
    last = [name for name in made if any(user not in chosen for user in record.consumers.get(name, (-1,)))]
    outputs = [name for name in sorted(last, key=lambda one: record.producers[one]) if name in record.values][:12]
    if not outputs:
        raise Unsuitable
    symbolic = draw.random() < 0.5
    graph = helper.make_graph(
        [copy.deepcopy(node) for node in taken],
        "piece",
        [_info(name, array, record.symbols if symbolic else {}) for name, array in feeds.items()],
        [_info(name, record.values[name], None) for name in outputs],
        [copy.deepcopy(one) for one in weights.values()],
    )
    model = helper.make_model(
        graph, opset_imports=list(record.model.opset_import), functions=list(record.model.functions),
        ir_version=record.model.ir_version,
    )  # fmt: skip
    if model.ir_version < 4:
        raise Unsuitable
    return model, feeds


def _info(name: str, array: Array, symbols: dict[int, str] | None) -> onnx.ValueInfoProto:
    dims = None if symbols is None else [symbols.get(dim, dim) for dim in array.shape]
    return helper.make_tensor_value_info(name, kind_of(array), dims)


class Mutator:
    """Changes a model in place.

    Args:
        draw: What to draw from.
        model: The model; its values keep their types and shapes.
        values: What its values are, by name.
        opset: The version of ai.onnx.
    """

    def __init__(self, draw: random.Random, model: ModelProto, values: dict[str, Array], opset: int) -> None:
        self.draw = draw
        self.model = model
        self.values = dict(values)
        self.weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
        self.opset = opset
        self.count = 0
        inserting = [self._identity, self._transposes, self._casts, self._reshape, self._unsqueezed, self._neutral,
                     self._split, self._dropout, self._flattened]  # fmt: skip
        rest = [self._twice, self._expose, self._swap, self._scalar, self._as_node, self._overridable,
                self._taken_apart]  # fmt: skip
        if any(subgraphs(model.graph.node)):
            rest += [self._nested_identity, self._nested_twice] * 5
        self.ways: list[Callable[[], None]] = [*(functools.partial(self._insert, one) for one in inserting), *rest]

    def _name(self) -> str:
        self.count += 1
        return f"mutant_{self.count}"

    def _constant(self, content: Any, dtype: Any = np.int64) -> str:
        name, array = self._name(), np.asarray(content, dtype)
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _insert(self, make: Callable[[str, Array], list[NodeProto]]) -> None:
        """Put nodes that change nothing between a value and some of its readers."""
        graph = self.model.graph
        edges = [
            (at, i)
            for at, node in enumerate(graph.node)
            for i, name in enumerate(node.input)
            if name in self.values and self.values[name].dtype.kind in ("f", "i")
        ]
        if not edges:
            raise Unsuitable
        at, i = self.draw.choice(edges)
        name = graph.node[at].input[i]
        nodes = make(name, self.values[name])
        new = nodes[-1].output[0]
        everywhere = self.draw.random() < 0.3
        for reader in range(at, len(graph.node)):
            for j, other in enumerate(graph.node[reader].input):
                if other == name and ((reader, j) == (at, i) or everywhere):
                    graph.node[reader].input[j] = new
        rest = list(graph.node[at:])
        del graph.node[at:]
        graph.node.extend([*nodes, *rest])
        self.values[new] = self.values[name]

    def _identity(self, name: str, array: Array) -> list[NodeProto]:
        ops = ("Identity", "Identity", "Relu", "Abs", "Neg") if array.dtype.kind == "f" else ("Identity",)
        return [helper.make_node(self.draw.choice(ops), [name], [self._name()])]

    def _dropout(self, name: str, array: Array) -> list[NodeProto]:
        if array.dtype.kind != "f":
            raise Unsuitable
        return [helper.make_node("Dropout", [name], [self._name()])]

    def _transposes(self, name: str, array: Array) -> list[NodeProto]:
        if not array.ndim:
            raise Unsuitable
        perm = list(range(array.ndim))
        self.draw.shuffle(perm)
        middle, back = self._name(), [perm.index(i) for i in range(array.ndim)]
        nodes = [helper.make_node("Transpose", [name], [middle], perm=perm)]
        if self.draw.random() < 0.3:
            op = "Neg" if array.dtype.kind == "f" else "Identity"
            nodes.append(helper.make_node(op, [middle], [f"{middle}_neg"]))
            middle = f"{middle}_neg"
        return [*nodes, helper.make_node("Transpose", [middle], [self._name()], perm=back)]

    def _casts(self, name: str, array: Array) -> list[NodeProto]:
        middle = self._name()
        floats = (TensorProto.DOUBLE, TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16)
        between = self.draw.choice(floats if array.dtype.kind == "f" else (TensorProto.INT64, TensorProto.INT32))
        own = kind_of(array)
        return [
            helper.make_node("Cast", [name], [middle], to=between),
            helper.make_node("Cast", [middle], [self._name()], to=own),
        ]

    def _reshape(self, name: str, array: Array) -> list[NodeProto]:
        shape, flat = self._name(), self._name()
        nodes = [helper.make_node("Shape", [name], [shape])]
        if self.draw.random() < 0.5:
            nodes.append(helper.make_node("Reshape", [name, self._constant([-1])], [flat]))
            name = flat
        return [*nodes, helper.make_node("Reshape", [name, shape], [self._name()])]

    def _flattened(self, name: str, array: Array) -> list[NodeProto]:
        middle = self._name()
        return [
            helper.make_node("Flatten", [name], [middle], axis=self.draw.randint(0, array.ndim)),
            helper.make_node("Reshape", [middle, self._constant(array.shape)], [self._name()]),
        ]

    def _unsqueezed(self, name: str, array: Array) -> list[NodeProto]:
        middle, axis = self._name(), self.draw.randint(0, array.ndim)
        given: dict[str, Any] = {} if self.opset >= 13 else {"axes": [axis]}
        more = [self._constant([axis])] if self.opset >= 13 else []
        return [
            helper.make_node("Unsqueeze", [name, *more], [middle], **given),
            helper.make_node("Squeeze", [middle, *more], [self._name()], **given),
        ]

    def _neutral(self, name: str, array: Array) -> list[NodeProto]:
        kinds = [("Add", 0.0), ("Sub", 0.0), ("Mul", 1.0), ("Div", 1.0)]
        if array.dtype.kind == "f":
            kinds += [("Mul", 0.5), ("Add", 1.0)]
        op, number = self.draw.choice(kinds)
        shape = self.draw.choice(((), (1,), array.shape[-1:], (1,) * array.ndim))
        operands = [name, self._constant(np.full(shape, number), array.dtype)]
        if op in ("Add", "Mul") and self.draw.random() < 0.5:
            operands.reverse()
        return [helper.make_node(op, operands, [self._name()])]

    def _split(self, name: str, array: Array) -> list[NodeProto]:
        if self.opset < 13 or not array.ndim or array.shape[-1] < 2:
            raise Unsuitable
        cut = self.draw.randint(1, array.shape[-1] - 1)
        parts = [self._name(), self._name()]
        sizes = self._constant([cut, array.shape[-1] - cut])
        return [
            helper.make_node("Split", [name, sizes], parts, axis=-1),
            helper.make_node("Concat", parts, [self._name()], axis=-1),
        ]

    def _twice(self) -> None:
        """A node and its equal; one reader reads the latter."""
        self._double(self.model.graph)

    def _double(self, graph: onnx.GraphProto) -> None:
        at = self.draw.randrange(len(graph.node))
        node = graph.node[at]
        made = [name for name in node.output if name]
        readers = [
            (i, j) for i in range(at + 1, len(graph.node)) for j, name in enumerate(graph.node[i].input) if name in made
        ]
        if not readers:
            raise Unsuitable
        twin = copy.deepcopy(node)
        twin.name = ""
        names = {name: self._name() for name in made}
        del twin.output[:]
        twin.output.extend(names.get(name, "") for name in node.output)
        i, j = self.draw.choice(readers)
        graph.node[i].input[j] = names[graph.node[i].input[j]]
        graph.node.insert(at + 1, twin)

    def _taken_apart(self) -> None:
        """A node as the nodes that a fusion would make it of."""
        graph = self.model.graph
        able = [
            (at, way)
            for at, node in enumerate(graph.node)
            if (way := _APART.get((node.domain, node.op_type))) is not None and node.input[0] in self.values
        ]
        if not able:
            raise Unsuitable
        at, way = self.draw.choice(able)
        nodes = way(self, graph.node[at], self.values[graph.node[at].input[0]])
        rest = list(graph.node[at + 1 :])
        del graph.node[at:]
        graph.node.extend([*nodes, *rest])

    def _of(self, op: str, inputs: list[str], output: str = "", **attributes: Any) -> NodeProto:
        return helper.make_node(op, inputs, [output or self._name()], **attributes)

    def _parts_of_gemm(self, node: NodeProto, array: Array) -> list[NodeProto]:
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0 or len(node.input) < 3:
            raise Unsuitable
        operands, nodes = list(node.input[:2]), []
        for i, name in enumerate(("transA", "transB")):
            if given.get(name, 0):
                nodes.append(self._of("Transpose", [operands[i]], perm=[1, 0]))
                operands[i] = nodes[-1].output[0]
        product = self._of("MatMul", operands)
        return [*nodes, product, self._of("Add", [product.output[0], node.input[2]], node.output[0])]

    def _parts_of_conv(self, node: NodeProto, array: Array) -> list[NodeProto]:
        bias = self.weights.get(node.input[2]) if len(node.input) > 2 else None
        if bias is None:
            raise Unsuitable
        plain = copy.deepcopy(node)
        del plain.input[2]
        plain.output[0] = self._name()
        shape = [1, -1, *(1 for _ in range(array.ndim - 2))]
        added = self._constant(bias.reshape(shape), bias.dtype)
        return [plain, self._of("Add", [plain.output[0], added], node.output[0])]

    def _parts_of_normalization(self, node: NodeProto, array: Array) -> list[NodeProto]:
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if given.get("axis", -1) not in (-1, array.ndim - 1) or len(node.output) > 1 or self.opset >= 18:
            raise Unsuitable
        mean = self._of("ReduceMean", [node.input[0]], axes=[-1])
        centred = self._of("Sub", [node.input[0], mean.output[0]])
        square = self._of("Pow", [centred.output[0], self._constant(2, array.dtype)])
        variance = self._of("ReduceMean", [square.output[0]], axes=[-1])
        shifted = self._of("Add", [variance.output[0], self._constant(given.get("epsilon", 1e-5), array.dtype)])
        root = self._of("Sqrt", [shifted.output[0]])
        nodes = [mean, centred, square, variance, shifted, root, self._of("Div", [centred.output[0], root.output[0]])]
        for op, operand in zip(("Mul", "Add"), node.input[1:], strict=False):
            nodes.append(self._of(op, [nodes[-1].output[0], operand]))
        nodes[-1].output[0] = node.output[0]
        return nodes

    def _parts_of_division(self, node: NodeProto, array: Array) -> list[NodeProto]:
        if array.dtype.kind != "f":
            raise Unsuitable
        turned = self._of("Reciprocal", [node.input[1]])
        return [turned, self._of("Mul", [node.input[0], turned.output[0]], node.output[0])]

    def _parts_of_difference(self, node: NodeProto, array: Array) -> list[NodeProto]:
        turned = self._of("Neg", [node.input[1]])
        return [turned, self._of("Add", [node.input[0], turned.output[0]], node.output[0])]

    def _parts_of_square(self, node: NodeProto, array: Array) -> list[NodeProto]:
        exponent = self.weights.get(node.input[1])
        if exponent is None or exponent.size != 1 or exponent.item() != 2:
            raise Unsuitable
        return [self._of("Mul", [node.input[0]] * 2, node.output[0])]

    def _parts_of_sigmoid(self, node: NodeProto, array: Array) -> list[NodeProto]:
        turned = self._of("Neg", [node.input[0]])
        power = self._of("Exp", [turned.output[0]])
        shifted = self._of("Add", [power.output[0], self._constant(1, array.dtype)])
        return [turned, power, shifted, self._of("Reciprocal", [shifted.output[0]], node.output[0])]

    def _parts_of_softmax(self, node: NodeProto, array: Array) -> list[NodeProto]:
        axis = next((one.i for one in node.attribute if one.name == "axis"), -1)
        if not 13 <= self.opset < 18:
            raise Unsuitable
        most = self._of("ReduceMax", [node.input[0]], axes=[axis])
        centred = self._of("Sub", [node.input[0], most.output[0]])
        power = self._of("Exp", [centred.output[0]])
        whole = self._of("ReduceSum", [power.output[0], self._constant([axis])])
        nodes = [most, centred, power, whole]
        return [*nodes, self._of("Div", [power.output[0], whole.output[0]], node.output[0])]

    def _nested_graph(self) -> onnx.GraphProto:
        """A graph below the main one that has nodes."""
        inner = [graph for graph in list(graphs_of(self.model.graph))[1:] if graph.node]
        if not inner:
            raise Unsuitable
        return self.draw.choice(inner)

    def _nested_identity(self) -> None:
        """What a node of a nested graph reads, or the graph gives, by way of an Identity."""
        graph = self._nested_graph()
        at = self.draw.randrange(len(graph.node) + 1)
        copied = self._name()
        if at < len(graph.node):
            places = [i for i, name in enumerate(graph.node[at].input) if name]
            if not places:
                raise Unsuitable
            i = self.draw.choice(places)
            name, graph.node[at].input[i] = graph.node[at].input[i], copied
        else:
            output = self.draw.choice(graph.output)
            name, output.name = output.name, copied
        graph.node.insert(at, helper.make_node("Identity", [name], [copied]))

    def _nested_twice(self) -> None:
        """A node of a nested graph and its equal."""
        self._double(self._nested_graph())

    def _expose(self) -> None:
        told = {one.name for one in self.model.graph.output}
        names = [
            name for node in self.model.graph.node for name in node.output if name in self.values and name not in told
        ]
        if not names:
            raise Unsuitable
        name = self.draw.choice(names)
        self.model.graph.output.append(_info(name, self.values[name], None))

    def _swap(self) -> None:
        nodes = [node for node in self.model.graph.node if node.op_type in ("Add", "Mul") and len(node.input) == 2]
        if not nodes:
            raise Unsuitable
        node = self.draw.choice(nodes)
        node.input[0], node.input[1] = node.input[1], node.input[0]

    def _scalar(self) -> None:
        """Another number than a pattern wants."""
        tensors = [
            one
            for one in self.model.graph.initializer
            if one.data_type == TensorProto.FLOAT and int(np.prod(one.dims)) == 1
        ]
        tensors += [
            attribute.t
            for node in self.model.graph.node
            if node.op_type == "Constant"
            for attribute in node.attribute
            if attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT
            and int(np.prod(attribute.t.dims)) == 1
        ]  # fmt: skip
        if not tensors:
            raise Unsuitable
        tensor = self.draw.choice(tensors)
        array = numpy_helper.to_array(tensor)
        number = array * self.draw.choice((1.01, 2.0, 0.5)) if self.draw.random() < 0.7 else array + 1
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(number, array.dtype), tensor.name))

    def _as_node(self) -> None:
        """An initializer as a Constant."""
        graph = self.model.graph
        told = {one.name for one in graph.input}
        small = [one for one in graph.initializer if len(one.raw_data) < 4096 and one.name not in told]
        if not small:
            raise Unsuitable
        tensor = self.draw.choice(small)
        node = helper.make_node("Constant", [], [tensor.name], value=copy.deepcopy(tensor))
        graph.initializer.remove(tensor)
        graph.node.insert(0, node)

    def _overridable(self) -> None:
        """An initializer that a caller may replace."""
        graph = self.model.graph
        told = {one.name for one in graph.input}
        free = [one for one in graph.initializer if one.name not in told and one.data_type == TensorProto.FLOAT]
        if not free:
            raise Unsuitable
        tensor = self.draw.choice(free)
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))


_APART: Final[dict[tuple[str, str], Callable[[Mutator, NodeProto, Array], list[NodeProto]]]] = {
    ("", "Conv"): Mutator._parts_of_conv,
    ("", "Div"): Mutator._parts_of_division,
    ("", "Gemm"): Mutator._parts_of_gemm,
    ("", "LayerNormalization"): Mutator._parts_of_normalization,
    ("", "Pow"): Mutator._parts_of_square,
    ("", "Sigmoid"): Mutator._parts_of_sigmoid,
    ("", "Softmax"): Mutator._parts_of_softmax,
    ("", "Sub"): Mutator._parts_of_difference,
}
