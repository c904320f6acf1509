"""The model that a division stands for: values retyped, weights converted as they are written, Casts where they go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.heritage import Heritage
from ortopt.graph.names import NameRegistry
from ortopt.graph.order import insert_behind
from ortopt.half_precision.division import Division, masks_above
from ortopt.half_precision.formats import Format
from ortopt.half_precision.units import Unit, Use
from ortopt.serialization.load import SOURCE_KEY, load
from ortopt.serialization.mapped_tensors import ConvertedTensor

_SINGLE = ir.DataType.FLOAT


def convert(model: ir.Model, division: Division, form: Format, token: CancellationToken = NEVER) -> ir.Model:
    """A copy of a model in which the units of 16 bits are so.

    Args:
        model: The model that was divided; it is not changed, and shares its tensors with the copy.
        division: Its division.
        form: The format.
        token: Cancellation token.
    """
    copy = load(model, token, checked=False)
    if SOURCE_KEY in model.meta:
        copy.meta[SOURCE_KEY] = model.meta[SOURCE_KEY]
    _Conversion(model, copy, division, form, token).run()
    return copy


class _Conversion:
    """Converts one copy, in place."""

    def __init__(
        self, model: ir.Model, copy: ir.Model, division: Division, form: Format, token: CancellationToken
    ) -> None:
        self._division = division
        self._form = form
        self._copy = copy
        self._graphs: dict[ir.Graph, ir.Graph] = {}
        self._nodes: dict[ir.Node, ir.Node] = {}
        self._values: dict[ir.Value, ir.Value] = {}
        self._owners: dict[ir.Value, ir.Graph] = {}
        self._names = NameRegistry(lambda: scope.graphs(copy, token))
        for old, new in zip(scope.graphs(model, token), scope.graphs(copy, token), strict=True):
            self._pair(old, new, token)

    def _pair(self, old: ir.Graph, new: ir.Graph, token: CancellationToken) -> None:
        self._graphs[old] = new
        pairs = [*zip(old.inputs, new.inputs, strict=True)]
        pairs += [(value, new.initializers[name]) for name, value in old.initializers.items()]
        for before, after in zip(token.checked(old), new, strict=True):
            self._nodes[before] = after
            pairs += zip(before.outputs, after.outputs, strict=True)
        for value, twin in pairs:
            self._values[value] = twin
            self._owners[value] = new

    def run(self) -> None:
        cast_down: list[ir.Value] = []
        for value, unit in self._division.producer.items():
            half = unit in self._division.half
            uses = [
                use for use, reader in self._division.readers.get(value, ()) if (reader in self._division.half) != half
            ]
            if unit.is_constant:
                self._constant(value, unit, uses)
                continue
            if half:
                self._retype(value)
            if uses:
                self._cast(value, uses, _SINGLE if half else self._form.dtype)
                if not half:
                    cast_down.append(value)
        for unit in self._division.half:
            if unit.node is not None and not unit.is_constant:
                self._give_half(self._nodes[unit.node])
        for mask in list(masks_above(cast_down, self._division)):
            self._clamp(mask)

    def _retype(self, value: ir.Value) -> None:
        twin = self._values[value]
        twin.type = ir.TensorType(self._form.dtype)
        if value.is_graph_input() and value.const_value is not None:  # a default that a caller may override
            twin.const_value = self._tensor(value.const_value, value.name)

    def _tensor(self, tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
        converted = ConvertedTensor(tensor, self._form.dtype, self._form.mask if self._has_mask(tensor) else None)
        converted.name = name
        return converted

    def _has_mask(self, tensor: ir.TensorProtocol) -> bool:
        return tensor.size > 0 and self._division.units.magnitudes.exceeds(tensor)

    def _constant(self, value: ir.Value, unit: Unit, others: list[Use]) -> None:
        """A constant in the precision of each reader; the original holds float32 where anyone reads that."""
        tensor = semantics.constant_tensor(value)
        assert tensor is not None
        half = unit in self._division.half
        readers = [use for use, _ in self._division.readers.get(value, ())]
        in_half = others if not half else [use for use in readers if use not in others]
        in_single = others if half else [use for use in readers if use not in others]
        if not in_half:
            return
        twin, producer = self._values[value], value.producer()
        if in_single:
            self._rewire(in_half, self._new_constant(value, self._tensor(tensor, None)))
        elif producer is None:
            twin.const_value = self._tensor(tensor, twin.name)
            twin.type = ir.TensorType(self._form.dtype)
        else:
            self._set_content(self._nodes[producer], self._tensor(tensor, twin.name))

    def _set_content(self, node: ir.Node, tensor: ir.TensorProtocol) -> None:
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", tensor)
        node.outputs[0].type = ir.TensorType(tensor.dtype)
        node.outputs[0].const_value = None

    def _new_constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """A constant beside another, where that stands."""
        name = self._names.fresh(f"{value.name}_{tensor.dtype.name.lower()}")
        tensor.name = name
        producer = value.producer()
        if producer is not None:
            node = ir.node("Constant", [], {"value": ir.AttrTensor("value", tensor)})
            node.outputs[0].name = name
            self._add(node, [self._nodes[producer]])
            node.outputs[0].type, node.outputs[0].shape = ir.TensorType(tensor.dtype), value.shape
            self._owners[value].insert_before(self._nodes[producer], node)
            return node.outputs[0]
        constant = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self._owners[value].register_initializer(constant)
        return constant

    def _add(self, node: ir.Node, origins: Iterable[ir.Node]) -> None:
        """Name a new node, and its result if that has no name, by the nodes that it stands for."""
        heritage = Heritage(origins)
        node.name = self._names.fresh(heritage.name_of(node))
        self._names.name_results(node)
        heritage.give(node)

    def _cast(self, value: ir.Value, uses: list[Use], dtype: ir.DataType) -> None:
        """Cast a value behind where it is made, once, for all of the uses."""
        twin, graph = self._values[value], self._owners[value]
        node = ir.node("Cast", [twin], {"to": dtype.value})
        cast = node.outputs[0]
        cast.type, cast.shape = ir.TensorType(dtype), twin.shape
        producer = twin.producer()
        readers = (self._nodes[holder] for holder, _ in uses if isinstance(holder, ir.Node))
        self._add(node, readers if producer is None else [producer])
        insert_behind(graph, node, producer)
        self._rewire(uses, cast)
        if twin not in self._copy.graph.inputs and any(use.holder in self._graphs for use in uses):
            self._keep_output_name(twin, cast)

    def _keep_output_name(self, twin: ir.Value, cast: ir.Value) -> None:
        """An output of the model keeps its name, whatever gives it now."""
        if not any(output is cast for output in self._copy.graph.outputs) or twin.name is None:
            return
        name, twin.name = twin.name, self._names.fresh(f"{twin.name}_{self._form.dtype.name.lower()}")
        cast.name = name

    def _rewire(self, uses: list[Use], value: ir.Value) -> None:
        for holder, position in uses:
            if isinstance(holder, ir.Node):
                self._nodes[holder].replace_input_with(position, value)
            else:
                self._graphs[holder].outputs[position] = value

    def _give_half(self, node: ir.Node) -> None:
        """Say 16 bits in the attribute of a node that says what it gives."""
        if node.domain == "" and node.op_type == "Cast" and node.attributes["to"].as_int() == _SINGLE.value:
            node.attributes["to"] = ir.AttrInt64("to", self._form.dtype.value)
        elif node.domain == "" and node.op_type == "ConstantOfShape":
            fill = node.attributes.get("value")
            tensor = ir.tensor([0.0], dtype=_SINGLE) if fill is None else fill.as_tensor()
            node.attributes["value"] = ir.AttrTensor("value", self._tensor(tensor, tensor.name))

    def _clamp(self, mask: Use | ir.Node) -> None:
        """Give a mask that is computed in float32 numbers that 16 bits have."""
        if isinstance(mask, Use):
            tensor = semantics.constant_tensor(mask.value)
            assert tensor is not None
            self._rewire([mask], self._new_constant(mask.value, ConvertedTensor(tensor, _SINGLE, self._form.mask)))
            return
        fill = mask.attributes.get("value")
        if fill is not None and not fill.is_ref() and self._has_mask(fill.as_tensor()):
            clamped = ConvertedTensor(fill.as_tensor(), _SINGLE, self._form.mask)
            self._nodes[mask].attributes["value"] = ir.AttrTensor("value", clamped)


def casts(model: ir.Model) -> Iterator[ir.Node]:
    """The Casts of a model between floats."""
    floats = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
    for graph in scope.graphs(model):
        for node in graph:
            if node.domain == "" and node.op_type == "Cast":
                ends = {node.inputs[0].dtype if node.inputs[0] is not None else None, node.outputs[0].dtype}
                if ends <= floats and len(ends) == 2:
                    yield node
