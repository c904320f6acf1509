"""What a group computes, as a model of its own: from the function that it is, or from nodes that no group took."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx
import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis import kernels
from ortopt.errors import InvalidModelError
from ortopt.graph import scope
from ortopt.graph.facts import shape_of
from ortopt.graph.symbolic import INVENTED
from ortopt.partition.groups import PROVIDER_KEY
from ortopt.runtime.values.tensors import write_type
from ortopt.semantics import GROUP_DOMAIN
from ortopt.semantics.domains import ML
from ortopt.serialization.types_of_values import FOREIGN_TYPE_KEY
from ortopt.terminal_text import quoted

_NEWEST_IR: Final = 13  # that ONNX Runtime reads
_OLDEST_IR: Final = 8  # that has functions
_STANDARD: Final = frozenset({"", ML})

_NODE_WORK: Final = 1_000
"""How many weights a node without weights counts for, where threads are divided."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or an output of a group.

    Attributes:
        name: Its name inside the group.
        type: Its type, None if it is not known before a run.
        shape: Its shape, as far as it is known.
        foreign: Its type as a serialized ``TypeProto``, if onnx-ir has no such type (maps).
    """

    name: str
    type: ir.TypeProtocol | None
    shape: ir.Shape | None
    foreign: bytes | None = None

    @property
    def typed(self) -> bool:
        """Whether its type is known before a run."""
        return self.type is not None or self.foreign is not None

    def declared(self, seen: str | None = None, *, shape: Sequence[int] | None = None) -> onnx.ValueInfoProto:
        """Its declaration in a model.

        Args:
            seen: The type of what it was given at a run, where the type is not known.
            shape: Sizes that are known of a run; None keeps what was declared.
        """
        info = onnx.ValueInfoProto(name=self.name)
        if self.type is not None:
            dims = self.shape if shape is None else ir.Shape(shape)
            value = ir.Value(name=self.name, type=self.type, shape=_without_inventions(dims))
            info.CopyFrom(ir.serde.serialize_value(value))
        elif self.foreign is not None:
            info.type.ParseFromString(self.foreign)
        elif seen is not None:
            write_type(info.type, seen)
            if shape is not None and info.type.HasField("tensor_type"):
                for dim in shape:
                    info.type.tensor_type.shape.dim.add(dim_value=dim)
        return info


@dataclass(frozen=True)
class GroupSpec:
    """A group as data: what is needed to make a session of it.

    Attributes:
        name: Its name, for people.
        nodes: Its nodes.
        inputs: What it is given at a run.
        outputs: What it gives, as far as it is used.
        weights: Its constants by their names inside, small ones that are nodes apart.
        functions: The local functions that its nodes call, at any depth.
        opsets: The opset imports that hold for its nodes.
        ir_version: Of the model that it is from.
        provider: The execution provider that it was made for, None if any will do.
        random: Whether it draws random numbers.
        foreign: Whether it has ops that neither ONNX nor ONNX Runtime defines: a library of the caller's may.
    """

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    weights: Mapping[str, ir.TensorProtocol]
    functions: tuple[onnx.FunctionProto, ...]
    opsets: Mapping[str, int]
    ir_version: int
    provider: str | None = None
    random: bool = False
    foreign: bool = False

    @functools.cached_property
    def work(self) -> float:
        """An estimate of what it has to do, in any unit."""
        return float(_NODE_WORK * len(self.nodes) + sum(tensor.size for tensor in self.weights.values()))

    @functools.cached_property
    def weight_bytes(self) -> int:
        """Bytes of its weights."""
        return sum(tensor.nbytes for tensor in self.weights.values())

    @property
    def typed(self) -> bool:
        """Whether the types of all inputs are known before a run."""
        return all(argument.typed for argument in self.inputs)

    def model(self, seen: Sequence[str | None] = (), shapes: Sequence[Sequence[int] | None] = ()) -> onnx.ModelProto:
        """A model without its weights: they are neither inputs nor initializers yet.

        Args:
            seen: The types of the inputs at a run, where they are not known.
            shapes: Sizes of the inputs where they are fixed.
        """
        types = list(seen) or [None] * len(self.inputs)
        sizes = list(shapes) or [None] * len(self.inputs)
        proto = onnx.ModelProto(
            ir_version=max(_OLDEST_IR, min(self.ir_version, _NEWEST_IR)),
            producer_name="ortopt",
            functions=self.functions,
        )
        for domain, version in self.opsets.items():
            proto.opset_import.add(domain=domain, version=version)
        graph = proto.graph
        graph.name = self.name
        graph.node.extend(self.nodes)
        for argument, type_, size in zip(self.inputs, types, sizes, strict=True):
            graph.input.append(argument.declared(type_, shape=size))
        for argument in self.outputs:  # shapes are what the nodes make of the inputs
            graph.output.append(Argument(argument.name, argument.type, None).declared())
        return proto

    def host_model(self, seen: Sequence[str | None] = ()) -> onnx.ModelProto:
        """A model whose weights are inputs behind the others."""
        return self._with_weights_as_inputs(self.model(seen))

    def complete_model(self, shapes: Sequence[Sequence[int] | None] = (), seen: Sequence[str | None] = ()) -> ir.Model:
        """A model with its weights as initializers, in the IR; `model` says what the arguments are."""
        model = ir.from_proto(self._with_weights_as_inputs(self.model(seen, shapes)))
        graph = model.graph
        for value, tensor in zip(graph.inputs[len(self.inputs) :], self.weights.values(), strict=True):
            value.const_value = tensor
            graph.register_initializer(value)
        graph.inputs[:] = graph.inputs[: len(self.inputs)]
        return model

    def _with_weights_as_inputs(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        for name, tensor in self.weights.items():
            proto.graph.input.append(
                Argument(name, ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())).declared()
            )
        return proto

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of all that it computes with, the types of its inputs apart; in hexadecimal."""
        digest = hashlib.sha256()
        messages: list[onnx.NodeProto | onnx.FunctionProto] = [*self.nodes, *self.functions]
        for message in messages:
            digest.update(message.SerializeToString(deterministic=True))
        names = [[argument.name for argument in arguments] for arguments in (self.inputs, self.outputs)]
        digest.update(repr((names, sorted(self.opsets.items()), self.ir_version)).encode())
        for name, tensor in self.weights.items():
            digest.update(f"{name} {tensor.dtype} {tensor.shape} ".encode())
            digest.update(tensor.tobytes())
        return digest.hexdigest()


def argument_of(value: ir.Value) -> Argument:
    """An argument as a value is declared, under its name."""
    return Argument(value.name or "", value.type, value.shape, value.meta.get(FOREIGN_TYPE_KEY))


def _given(name: str | None, type_: ir.TypeProtocol | None, value: ir.Value) -> Argument:
    """An argument of a group: its shape as it is proven, for ONNX Runtime enforces what a session's inputs declare."""
    return Argument(name or "", type_, shape_of(value), value.meta.get(FOREIGN_TYPE_KEY))


def free_prefix(names: Iterable[str | None]) -> str:
    """The beginning of names that are free.

    Args:
        names: Those that are taken.
    """
    taken = [name for name in names if name is not None and name.startswith("ortopt.")]
    prefix = "ortopt."
    while any(name.startswith(prefix) for name in taken):
        prefix += "."
    return prefix


def _without_inventions(shape: ir.Shape | None) -> ir.Shape | None:
    if shape is None:
        return None
    dims = [dim if isinstance(dim, int) else dim.value for dim in shape]
    return ir.Shape([None if isinstance(dim, str) and dim.startswith(INVENTED) else dim for dim in dims])


class SpecLibrary:
    """Makes specs of one model's groups and nodes.

    Args:
        model: The model, which is not changed.

    Attributes:
        functions: The model's local functions.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self.functions = model.functions
        self._protos: dict[ir.OperatorIdentifier, onnx.FunctionProto] = {}

    def group_of(self, node: ir.Node) -> ir.Function | None:
        """The group that a node calls, or None."""
        if node.domain != GROUP_DOMAIN:
            return None
        return self.functions.get(node.op_identifier())

    def of_call(
        self, node: ir.Node, function: ir.Function, wanted: Sequence[bool]
    ) -> tuple[GroupSpec, list[ir.Value], list[ir.Value]]:
        """The spec of a group, the values that its call is given at a run, and the wanted values that it gives.

        Raises:
            InvalidModelError: The call does not fit the function.
        """
        label = quoted(function.name)
        if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs):
            raise InvalidModelError(f"group {label} is called with more inputs or outputs than it has")
        operands: list[ir.Value] = []
        arguments: list[Argument] = []
        weights: dict[str, ir.TensorProtocol] = {}
        missing = {formal.name or "" for formal in function.inputs[len(node.inputs) :]}
        for value, formal in zip(node.inputs, function.inputs, strict=False):
            name = formal.name or ""
            tensor = semantics.constant_tensor(value)
            if value is None:
                missing.add(name)
            elif tensor is not None:
                weights[name] = tensor
            else:
                operands.append(value)
                arguments.append(_given(name, formal.type if value.type is None else value.type, value))
        results, outputs = [], []
        for value, formal, asked in zip(node.outputs, function.outputs, wanted, strict=False):
            if asked:
                results.append(value)
                outputs.append(Argument(formal.name or "", formal.type or value.type, None))
        spec = GroupSpec(
            function.name,
            tuple(_serialized(inner, missing) for inner in function),
            tuple(arguments),
            tuple(outputs),
            weights,
            self._called(function),
            self._opsets(function.opset_imports, function),
            self._model.ir_version,
            function.metadata_props.get(PROVIDER_KEY),
            self._is_random(function),
            self._is_foreign(function, function.opset_imports),
        )
        return spec, operands, results

    def of_nodes(
        self, name: str, nodes: Sequence[ir.Node], operands: Sequence[ir.Value], results: Sequence[ir.Value]
    ) -> GroupSpec:
        """The spec of nodes of one graph.

        Args:
            name: What to call it.
            nodes: The nodes, in topological order.
            operands: Values from outside that are not constant.
            results: Values that are used outside.
        """
        weights: dict[str, ir.TensorProtocol] = {}
        internal = {value for node in nodes for value in node.outputs}
        for node in nodes:
            for value in (*node.inputs, *scope.captured(node)):
                if value is None or value in internal or value.name in weights:
                    continue
                tensor = semantics.constant_tensor(value)
                if tensor is not None:
                    weights[value.name or ""] = tensor
        return GroupSpec(
            name,
            tuple(_serialized(node, ()) for node in nodes),
            tuple(_given(value.name, value.type, value) for value in operands),
            tuple(Argument(value.name or "", value.type, None) for value in results),
            weights,
            self._called(nodes),
            self._opsets(self._model.opset_imports, nodes),
            self._model.ir_version,
            None,
            self._is_random(nodes),
            self._is_foreign(nodes, self._model.opset_imports),
        )

    def _called(self, nodes: Iterable[ir.Node]) -> tuple[onnx.FunctionProto, ...]:
        """The functions that nodes call, at any depth, in the model's order."""
        if not self.functions:
            return ()
        identifiers = self._reached(nodes)
        protos = []
        for identifier, function in self.functions.items():
            if identifier not in identifiers:
                continue
            if identifier not in self._protos:
                self._protos[identifier] = ir.serde.serialize_function(function)
            protos.append(self._protos[identifier])
        return tuple(protos)

    def _reached(self, nodes: Iterable[ir.Node]) -> set[ir.OperatorIdentifier]:
        identifiers: set[ir.OperatorIdentifier] = set()
        pending = [*nodes]
        while pending:
            called = {node.op_identifier() for node in scope.with_nested(pending.pop())}
            for identifier in (called & self.functions.keys()) - identifiers:
                identifiers.add(identifier)
                pending.extend(self.functions[identifier])
        return identifiers

    def _opsets(self, own: Mapping[str, int], nodes: Iterable[ir.Node]) -> dict[str, int]:
        """The imports that hold for nodes, and those of the domains of the functions that they call."""
        opsets = dict(own)
        for domain, _, _ in self._reached(nodes):
            opsets.setdefault(domain, self._model.opset_imports.get(domain, 1))
        return opsets

    def _is_random(self, nodes: Iterable[ir.Node]) -> bool:
        return any(semantics.is_random(node, self.functions) for node in nodes)

    def _is_foreign(self, nodes: Iterable[ir.Node], opsets: Mapping[str, int]) -> bool:
        functions = [self.functions[identifier] for identifier in self._reached(nodes)]
        bodies = [(nodes, opsets), *((function, function.opset_imports) for function in functions)]
        return any(
            self._needs_library(inner, imports)
            for body, imports in bodies
            for node in body
            for inner in scope.with_nested(node)
        )

    def _needs_library(self, node: ir.Node, opsets: Mapping[str, int]) -> bool:
        if node.domain in _STANDARD or node.op_identifier() in self.functions:
            return False  # no library adds to these domains; schemas are 5 MB that most models do not need
        return kernels.schema(node.domain, node.op_type, opsets.get(node.domain, 1)) is None


def _serialized(node: ir.Node, missing: Iterable[str]) -> onnx.NodeProto:
    proto = ir.serde.serialize_node(node)
    for name in missing:
        for i, operand in enumerate(proto.input):
            if operand == name:
                proto.input[i] = ""
    return proto


Specification = tuple[tuple[int, ...], ...]
"""For each argument its element type and its sizes."""

Specialization = tuple[Specification, tuple[tuple[int, bytes], ...]]
"""A specification, and the arguments that were folded in, with their bytes."""
