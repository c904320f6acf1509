"""A part of a model that stands alone: the nodes around a rewrite, before and after it, with what flows into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.errors import OrtoptError
from ortopt.graph import scope
from ortopt.graph.symbolic import INVENTED
from ortopt.semantics import same_constant, subgraphs
from ortopt.serialization.load import load
from ortopt.verification.runner import outputs_of
from ortopt.verification.verify import verify

if TYPE_CHECKING:
    import onnx

    from ortopt.optimization.bisection import Blame
    from ortopt.options import Options

RADII = (0, 1, 2, 4, 8, 16, 32)
"""How many nodes around what a rewrite changed are taken along, until the outputs differ."""

LARGEST_COMPARED = 1 << 20
"""Constants of more bytes that have the same name before and after are taken to be the same."""


class Unfit(Exception):  # noqa: N818 -- a reason to take the whole model
    """A part of a model cannot stand alone; the message says why."""


class Excerpt(NamedTuple):
    """A part of a model before and after a rewrite.

    Attributes:
        before: The part before it.
        after: The part after it.
        inputs: The inputs of both, by name.
    """

    before: ir.Model
    after: ir.Model
    inputs: Mapping[str, Any]


class _Outline:
    """The main graph of a model by names, by which the models before and after a rewrite can be compared."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes = list(model.graph)
        calls = _Calls(model)
        self.keys = [_key(node, calls) for node in self.nodes]
        self.values: dict[str, ir.Value] = {value.name or "": value for value in model.graph.inputs}
        self.users: dict[str, list[int]] = {}
        self.producer: dict[str, int] = {}
        self.needs: list[list[str]] = []
        for index, node in enumerate(self.nodes):
            needed = [value for value in (*node.inputs, *scope.captured(node)) if value is not None and value.name]
            self.needs.append([value.name or "" for value in needed])
            for value in needed:
                self.values.setdefault(value.name or "", value)
                self.users.setdefault(value.name or "", []).append(index)
            for value in node.outputs:
                self.producer[value.name or ""] = index
                self.values[value.name or ""] = value
        self.outputs = {value.name for value in model.graph.outputs}

    def around(self, chosen: set[int]) -> set[int]:
        """The producers and the users of some nodes."""
        nodes = {self.producer[name] for index in chosen for name in self.needs[index] if name in self.producer}
        for index in chosen:
            for value in self.nodes[index].outputs:
                nodes.update(self.users.get(value.name or "", ()))
        return nodes

    def results(self, chosen: set[int]) -> dict[str, bool]:
        """The results of some nodes, by name: whether they are needed outside of these."""
        return {
            name: name in self.outputs or any(user not in chosen for user in self.users.get(name, ()))
            for index in sorted(chosen)
            for value in self.nodes[index].outputs
            if (name := value.name)
        }


class _Calls:
    """Which functions nodes run, and what is in them."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._contents: dict[ir.OperatorIdentifier, bytes] = {}

    def of(self, nodes: Iterable[ir.Node]) -> list[ir.Function]:
        """The functions that nodes call, and those that these call, in the model's order."""
        if not self._functions:
            return []
        reached: set[ir.OperatorIdentifier] = set()
        pending = list(nodes)
        while pending:
            node = pending.pop()
            pending.extend(inner for graph in subgraphs(node) for inner in graph)
            called = node.op_identifier()
            if called in self._functions and called not in reached:
                reached.add(called)
                pending.extend(self._functions[called])
        return [function for identifier, function in self._functions.items() if identifier in reached]

    def content(self, function: ir.Function) -> bytes:
        """What tells a function from another version of it."""
        known = self._contents.get(function.identifier())
        if known is None:
            proto = ir.to_proto(function)
            for node in proto.node:
                del node.metadata_props[:]
            known = self._contents[function.identifier()] = proto.SerializeToString(deterministic=True)
        return known


def _key(node: ir.Node, calls: _Calls) -> bytes:
    proto = ir.to_proto(node)
    del proto.metadata_props[:]
    key: bytes = proto.SerializeToString(deterministic=True)
    return b"".join((key, *(calls.content(function) for function in calls.of([node]))))


def around(blame: Blame, options: Options) -> Excerpt | None:
    """The nodes that a rewrite changed, with as few around them as it takes for outputs to differ.

    Args:
        blame: The rewrite, and the models around it.
        options: Options of the run.

    Returns:
        The part; None where only the whole model shows the difference.
    """
    old, new = _Outline(blame.before), _Outline(blame.after)
    chosen = _changed(old, new)
    grown = 0
    for radius in RADII:
        while grown < radius:
            keys = {side.keys[i] for side, set_ in zip((old, new), chosen, strict=True) for i in side.around(set_)}
            chosen = tuple(  # type: ignore[assignment]
                set_ | {i for i, key in enumerate(side.keys) if key in keys}
                for side, set_ in zip((old, new), chosen, strict=True)
            )
            grown += 1
        if len(chosen[0]) == len(old.nodes) and len(chosen[1]) == len(new.nodes):
            return None
        try:
            excerpt = _cut(old, new, chosen, blame.inputs, options)
            outcome = verify(excerpt.before, excerpt.after, inputs=excerpt.inputs, providers=options.providers)
        except (Unfit, OrtoptError, ValueError, TypeError):
            continue
        if outcome.status == "differs":
            return excerpt
    return None


def _changed(old: _Outline, new: _Outline) -> tuple[set[int], set[int]]:
    """The nodes that only one of the two has, or whose constants differ."""
    differing = {
        name
        for name, value in old.model.graph.initializers.items()
        if name in new.model.graph.initializers
        and not same_content(value.const_value, new.model.graph.initializers[name].const_value)
    }
    changed = []
    for side, keys in ((old, set(new.keys)), (new, set(old.keys))):
        changed.append(
            {i for i, key in enumerate(side.keys) if key not in keys or not differing.isdisjoint(side.needs[i])}
        )
    return changed[0], changed[1]


def _cut(
    old: _Outline, new: _Outline, chosen: tuple[set[int], set[int]], feeds: Mapping[str, Any], options: Options
) -> Excerpt:
    computed, recomputed = old.results(chosen[0]), new.results(chosen[1])
    outputs = [name for name, needed in computed.items() if name in recomputed and (needed or recomputed[name])]
    if not outputs:
        raise Unfit("nothing of it is needed outside")
    inputs: dict[str, None] = {}
    for side, set_ in ((old, chosen[0]), (new, chosen[1])):
        own = side.results(set_)
        for index in sorted(set_):
            inputs.update((n, None) for n in side.needs[index] if n not in own and not _is_constant(side.values[n]))
    captured = _capture(old, list(inputs), feeds, options)
    before = section(old.model, [old.nodes[i] for i in sorted(chosen[0])], outputs, [old.values[n] for n in inputs])
    inputs_after = [new.values.get(name, old.values[name]) for name in inputs]
    after = section(new.model, [new.nodes[i] for i in sorted(chosen[1])], outputs, inputs_after)
    if before is None or after is None:
        raise Unfit("it is no model by itself")
    return Excerpt(before, after, captured)


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and value.const_value is not None


def _capture(outline: _Outline, names: Sequence[str], feeds: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The content of some values when the model runs on its inputs."""
    missing = [name for name in names if name not in feeds]
    if any(name not in outline.producer for name in missing):
        raise Unfit("it needs a value that the model before the rewrite does not have")
    captured: Mapping[str, Any] = {}
    if missing:
        graph = outline.model.graph
        count = len(graph.outputs)
        try:
            graph.outputs.extend(outline.values[name] for name in missing if name not in outline.outputs)
            captured = outputs_of(outline.model, dict(feeds), providers=options.providers)
        finally:
            del graph.outputs[count:]
    values = {name: feeds[name] if name in feeds else captured[name] for name in names}
    if not storable(values):
        raise Unfit("a value at its border cannot be stored")
    return values


def section(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    outputs: Sequence[str] | None = None,
    inputs: Sequence[ir.Value] | None = None,
) -> ir.Model | None:
    """Nodes of the main graph as a model of their own; None where they cannot be one.

    Args:
        model: Their model.
        nodes: The nodes, in order.
        outputs: The names of its outputs; None is all that is needed outside of the nodes.
        inputs: Its inputs; None is all that it needs.
    """
    import onnx

    own = {value.name for node in nodes for value in node.outputs if value.name}
    needed = [value for node in nodes for value in (*node.inputs, *scope.captured(node)) if value is not None]
    outside = dict.fromkeys(value for value in needed if value.name and value.name not in own)
    values = {value.name or "": value for node in nodes for value in node.outputs}
    inside = set(nodes)
    if outputs is None:
        outputs = [
            name
            for name, value in values.items()
            if name and (value.is_graph_output() or any(use.node not in inside for use in value.uses()))
        ]
    if inputs is None:
        inputs = [value for value in outside if not _is_constant(value)]
    proto = onnx.ModelProto(ir_version=model.ir_version, producer_name="ortopt bisect")
    proto.opset_import.extend(onnx.helper.make_opsetid(*imported) for imported in model.opset_imports.items())
    graph = proto.graph
    graph.name = "part"
    try:
        graph.input.extend(_info(value) for value in inputs)
        graph.output.extend(_info(values[name]) for name in outputs)
        graph.node.extend(ir.to_proto(node) for node in nodes)
        for value in outside:
            if value.const_value is not None and value.is_initializer():
                tensor = ir.to_proto(value.const_value)
                tensor.name = value.name or ""
                graph.initializer.append(tensor)
        proto.functions.extend(ir.to_proto(function) for function in _Calls(model).of(nodes))
        return load(proto)
    except (OrtoptError, Unfit, ValueError, TypeError, KeyError):
        return None


def _info(value: ir.Value) -> onnx.ValueInfoProto:
    if value.type is None:
        raise Unfit("a type at its border is not known")
    info: onnx.ValueInfoProto = ir.to_proto(value)
    for dim in info.type.tensor_type.shape.dim:
        if INVENTED in dim.dim_param:
            dim.ClearField("dim_param")
    del info.metadata_props[:]
    return info


def same_content(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    """Whether two constants of the same name are the same, as far as they are small enough to be compared."""
    if one is other or one is None or other is None or one.nbytes > LARGEST_COMPARED:
        return True
    return same_constant(one, other)


def storable(values: Mapping[str, Any]) -> bool:
    """Whether a file of plain arrays can hold values: no sequences, no optionals, no types that numpy lacks."""
    return all(
        isinstance(value, np.ndarray) and value.dtype.kind in "biufcOSU" and "\0" not in name and name != "file"
        for name, value in values.items()
    )
