"""A model that is being changed: its constants, values and nodes, wherever they are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from fuzzing.protos import graphs_of, nodes_of, subgraphs
from fuzzing.writer import Array, Unsuitable

Item = TypeVar("Item")

FLOATS: Final = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
INTEGERS: Final = (TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16,
                   TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)  # fmt: skip


class Draft:
    """A model that is being changed in place.

    Args:
        draw: What to draw from.
        model: The model.
    """

    def __init__(self, draw: random.Random, model: ModelProto) -> None:
        self.draw = draw
        self.model = model
        self.graph = model.graph
        self._count = 0

    def one(self, items: Sequence[Item]) -> Item:
        """One of these.

        Raises:
            Unsuitable: There is none.
        """
        if not items:
            raise Unsuitable
        return self.draw.choice(items)

    def name(self) -> str:
        """A name that no value has."""
        self._count += 1
        return f"changed_{self._count}"

    @property
    def opset(self) -> int:
        """The version of ai.onnx."""
        return next((one.version for one in self.model.opset_import if one.domain in ("", "ai.onnx")), 1)

    @property
    def nodes(self) -> list[NodeProto]:
        """All nodes, those of nested graphs and functions included."""
        return list(nodes_of(self.model))

    def graphs(self) -> Iterator[GraphProto]:
        """All graphs but the bodies of functions."""
        yield from graphs_of(self.graph)
        for function in self.model.functions:
            for held in subgraphs(function.node):
                yield from graphs_of(held)

    def constants(self) -> list[TensorProto]:
        """The tensors of all initializers and Constant nodes."""
        found = [tensor for graph in self.graphs() for tensor in graph.initializer]
        for node in self.nodes:
            if node.op_type == "Constant":
                found += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
        return found

    def declared(self) -> Iterator[ValueInfoProto]:
        """What graphs declare of values."""
        for graph in self.graphs():
            yield from graph.input
            yield from graph.output
            yield from graph.value_info

    def forget_computed(self) -> None:
        """Leave out what graphs declare of the shapes of computed values: it may no longer hold."""
        for graph in self.graphs():
            del graph.value_info[:]
            for value in graph.output:
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")

    def given(self) -> set[str]:
        """The names of the main graph's initializers."""
        return {tensor.name for tensor in self.graph.initializer}

    def inputs(self) -> list[ValueInfoProto]:
        """The inputs of tensors that are no initializers."""
        given = self.given()
        return [one for one in self.graph.input if one.name not in given and one.type.HasField("tensor_type")]

    def before(self, at: int) -> list[str]:
        """The names that a node of the main graph may read."""
        names = [one.name for one in self.graph.input]
        names += [one.name for one in self.graph.initializer if one.name not in names]
        return names + [name for node in self.graph.node[:at] for name in node.output if name]

    def constant(self, content: Any, dtype: Any = np.int64) -> str:
        """The name of a new initializer."""
        name = self.name()
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(content, dtype), name))
        return name

    def give(self, name: str) -> None:
        """Make a value of the main graph one of its outputs, with its type yet unknown."""
        if any(one.name == name for one in self.graph.output):
            raise Unsuitable
        value = ValueInfoProto(name=name)
        self.graph.output.insert(self.draw.randint(0, len(self.graph.output)), value)


def array_of(tensor: TensorProto) -> Array:
    """The content of a constant.

    Raises:
        Unsuitable: It is text, or in another file.
    """
    if tensor.data_type == TensorProto.STRING or tensor.external_data:
        raise Unsuitable
    return numpy_helper.to_array(tensor)


def store(tensor: TensorProto, array: Array) -> None:
    """Give a constant another content, in the type of the array."""
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))


def is_float(dtype: int) -> bool:
    """Whether an element type holds floats that this module changes."""
    return dtype in FLOATS


def numpy_type(dtype: int) -> np.dtype[Any]:
    """The array type of an element type."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
