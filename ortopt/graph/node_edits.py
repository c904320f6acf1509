"""The edits of nodes, their operands and constants: each is logged, and keeps names, types and the index right."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.constants import FLOATS
from ortopt.graph.detached import constant, detach, is_detached_constant
from ortopt.graph.heritage import heritages
from ortopt.graph.index import OpIndex
from ortopt.graph.module_scopes import constant_name
from ortopt.graph.names import NameRegistry, set_name
from ortopt.graph.order import insert_behind
from ortopt.graph.provenance import VALUES_KEY, values_of
from ortopt.graph.refusal import Conflict
from ortopt.graph.reinference import Reinference, infers_alike
from ortopt.graph.undo_log import UndoLog
from ortopt.onnx_ir_internals import (
    Usage,
    attributes_of,
    get_meta,
    previous_node,
    replace_input,
    set_meta,
    set_outputs,
    unlink,
    use_count,
)
from ortopt.semantics.opset_changes import CONSTANTS_OF_ANY_TYPE_FROM

_PAD_AXES = 3

Accept = Callable[[Sequence[ir.Node], Sequence[ir.Node]], None]
"""Asked about new nodes, with their types and shapes, and the nodes that they stand for; raises to refuse them."""


class NodeEdits:
    """The single changes of nodes that an `Editor` can make.

    Args:
        model: The model; `scope.attach` has seen it.
        infer: Called with each new node after its insertion; sets the types and shapes of its outputs.
        token: Cancellation token of the construction.

    Attributes:
        index: The nodes of each graph by op, kept current.
        touched: Nodes whose inputs, outputs or neighbours changed, oldest first; only grows.
        added_bytes: Bytes of constants that edits have added, less those that they have freed.
        allowance: What `added_bytes` may come to (`semantics.growth_allowance`).
        author: The transformer that edits now: it goes into the new nodes' metadata.
        offered: The nodes that the present change is about: new nodes stand for them if nothing else is said.
        accept: Asked about all nodes that come into the model, whichever edit brings them; None accepts them.
    """

    def __init__(self, model: ir.Model, infer: Callable[[ir.Node], None], token: CancellationToken = NEVER) -> None:
        self.model = model
        self.index = OpIndex(model, token)
        self.touched: list[ir.Node] = []
        self.added_bytes = 0
        self.allowance = sys.maxsize
        self.author = ""
        self.offered: Sequence[ir.Node] = ()
        self.accept: Accept | None = None
        self._freed_initializers: dict[ir.Value, None] = {}
        self._infer = infer
        self._log = UndoLog()
        self._names = NameRegistry(self.index.graphs)
        self._reinference = Reinference(model, self.index, self._log, self.touched)
        self._outdated = self._reinference.outdated

    # -- the log ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """A point to go back to (see `rollback`)."""
        return len(self._log.changes)

    @property
    def clock(self) -> int:
        """Grows with every change, and never goes back: equal readings mean an unchanged model."""
        return self._log.clock

    @clock.setter
    def clock(self, reading: int) -> None:
        self._log.clock = reading

    def rollback(self, version: int, token: CancellationToken = NEVER) -> None:
        """Take back every change since `version` was read.

        Args:
            version: An earlier value of `Editor.version`.
            token: Cancellation token; a rollback that is stopped can be continued.
        """
        self._log.rollback(version, token)

    def size_at(self, graph: ir.Graph, version: int) -> int:
        """How many nodes a graph had when `version` was read."""
        size = len(graph)
        for undo, arguments in self._log.changes[version:]:
            if undo == self._undo_insert:
                size -= arguments[0] is graph
            elif undo == self._undo_remove:
                size += arguments[0] is graph
            elif undo == self._undo_move:
                size += (arguments[1] is graph) - (arguments[2] is graph)
        return size

    def concerned(self, version: int) -> frozenset[int]:
        """What has been edited since `version` was read: the ids of the nodes, values, graphs and other objects."""
        return self._log.concerned(version)

    def renamed(self, version: int) -> frozenset[int]:
        """The ids of the values that have got other names since `version` was read."""
        return frozenset(id(arguments[0]) for undo, arguments in self._log.changes[version:] if undo is set_name)

    # -- names ------------------------------------------------------------------------------------------------------

    def fresh_name(self, hint: str) -> str:
        """A name that no value and no node of the model bears.

        Args:
            hint: What it shall look like.
        """
        return self._names.fresh(hint)

    def collect_names(self, token: CancellationToken = NEVER) -> None:
        """Read all names of the model, as the first `fresh_name` does: linear in the nodes once, free afterwards.

        Args:
            token: Cancellation token.
        """
        self._names.collect(token)

    def forget_names(self) -> None:
        """Let the names of what has gone be given again. The next `fresh_name` is linear in the nodes."""
        self._names.forget()

    def rename(self, value: ir.Value, name: str | None) -> None:
        """Rename a value that is no initializer.

        Args:
            value: A node's output.
            name: The new name; unique unless its present bearer is about to go.
        """
        old = value.name
        if old == name:
            return
        if get_meta(value, VALUES_KEY) is None and (names := values_of(value)):
            value.meta[VALUES_KEY] = names
            self._log.record(set_meta, value, VALUES_KEY, None)
        set_name(value, name)
        if name is not None:
            self._names.register(name)
        self._log.record(set_name, value, old)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def insert(
        self, nodes: Sequence[ir.Node], before: ir.Node, origin: Sequence[ir.Node] = (), *, named: bool = False
    ) -> None:
        """Put new nodes into the graph of `before`, in front of it, with names, types and shapes.

        Args:
            nodes: Nodes of no graph, each after those that it uses.
            before: A node of the graph.
            origin: The nodes that the new ones stand for: provenance, and the source of names and metadata.
            named: Whether they keep names that they have, as copies out of a function that stand below its call.

        Raises:
            Conflict: If they are not accepted; nothing is changed then.
        """
        start, clock = self.version, self.clock
        self._inherit(nodes, origin, named=named)
        self._insert(nodes, before)
        self._check_accepted(nodes, origin, start, clock)

    def _insert(self, nodes: Sequence[ir.Node], before: ir.Node) -> None:
        graph = scope.graph_of(before)
        for node in nodes:
            for own in scope.with_nested(node):
                self._names.name_results(own)
                self._materialize_constants(own, before)
            graph.insert_before(before, node)
            self._enter(graph, node)
            if _needs_int64_axes(node):
                self._widen_axes(node)
            self._infer(node)

    def append(self, graph: ir.Graph, node: ir.Node) -> None:
        """Put a new node at the end of a graph.

        Args:
            graph: Where to.
            node: A node of no graph, whose inputs are all in reach.

        Raises:
            Conflict: If it is not accepted; nothing is changed then.
        """
        start, clock = self.version, self.clock
        self._inherit([node], ())
        self._names.name_results(node)
        graph.append(node)
        self._enter(graph, node)
        self._infer(node)
        self._check_accepted([node], (), start, clock)

    def _check_accepted(self, nodes: Sequence[ir.Node], origin: Sequence[ir.Node], start: int, clock: int) -> None:
        """Ask whether nodes that have come in may stay; if not, take back all since a version."""
        if self.accept is None or not nodes:
            return
        try:
            self.accept(nodes, origin)
        except BaseException:
            self.rollback(start)
            self.clock = clock  # the model is as it was: a refusal is no change
            raise

    def _enter(self, graph: ir.Graph, node: ir.Node) -> None:
        if attributes_of(node):
            scope.attach_below(node)
        self.index.add(graph, node)
        self.touched.append(node)
        self._log.record(self._undo_insert, graph, node)
        if node.op_type == "Constant" and (nbytes := constant_bytes(node)):
            self._count(nbytes)

    def _undo_insert(self, graph: ir.Graph, node: ir.Node) -> None:
        unlink(node)
        self.index.discard(graph, node)
        for user in scope.with_nested(node):
            detach(user)

    def _inherit(
        self,
        nodes: Iterable[ir.Node],
        origin: Sequence[ir.Node],
        single: Mapping[ir.Node, Sequence[ir.Node]] | None = None,
        *,
        named: bool = False,
    ) -> None:
        """Name new nodes, and give them provenance and metadata, by the nodes that they stand for (see `heritages`).

        In graphs below them, those are new that have no names.
        """
        new = [own for node in nodes for own in scope.with_nested(node) if own is node or not own.name]
        if not new:
            return
        for node, heritage in zip(new, heritages(new, origin or self.offered, single or {}), strict=True):
            if not (named and node.name):
                node.name = self.fresh_name(heritage.name_of(node))
            heritage.give(node, self.author)

    def remove(self, node: ir.Node) -> None:
        """Take a node out of its graph; nothing uses its outputs. What it alone used stays (see `sweep`)."""
        graph = scope.graph_of(node)
        before = previous_node(node)
        inputs: list[tuple[ir.Node, tuple[ir.Value | None, ...]]] = []
        for user in scope.with_nested(node):
            inputs.append((user, tuple(user.inputs)))
            detach(user)
        unlink(node)
        self.index.discard(graph, node)
        self._log.record(self._undo_remove, graph, node, before, inputs)
        for value in dict.fromkeys(value for _, used in inputs for value in used):
            if value is not None and not use_count(value):
                self._freed(value)
        if node.op_type == "Constant" and (nbytes := constant_bytes(node)):
            self._count(-nbytes)

    def _undo_remove(
        self,
        graph: ir.Graph,
        node: ir.Node,
        before: ir.Node | None,
        inputs: list[tuple[ir.Node, tuple[ir.Value | None, ...]]],
    ) -> None:
        self._put_back(graph, node, before)
        for user, values in inputs:
            for position, value in enumerate(values):
                replace_input(user, position, value)

    def move_before(self, node: ir.Node, anchor: ir.Node) -> None:
        """Move a node, in one graph or into that of `anchor`, with the graphs below it.

        Args:
            node: A node of the model.
            anchor: The node that it shall stand before.

        Raises:
            Conflict: If it is another op there, and is not accepted; nothing is changed then.
        """
        source, target = scope.graph_of(node), scope.graph_of(anchor)
        start, clock = self.version, self.clock
        before = previous_node(node)
        self.index.discard(source, node)
        unlink(node)
        target.insert_before(anchor, node)
        self.index.add(target, node)
        scope.attach_below(node)
        self.touched.append(node)
        self._log.record(self._undo_move, node, source, target, before)
        self._check_accepted(other_versions([node], source, target), (), start, clock)

    def _undo_move(self, node: ir.Node, source: ir.Graph, target: ir.Graph, before: ir.Node | None) -> None:
        self.index.discard(target, node)
        unlink(node)
        self._put_back(source, node, before)
        scope.attach_below(node)

    def _put_back(self, graph: ir.Graph, node: ir.Node, before: ir.Node | None) -> None:
        """Put a node where it has been: behind another one, or first of all."""
        insert_behind(graph, node, before)
        self.index.add(graph, node)

    def reorder(self, graph: ir.Graph, nodes: Sequence[ir.Node], token: CancellationToken = NEVER) -> None:
        """Bring the nodes of a graph into another order.

        Args:
            graph: The graph.
            nodes: All of its nodes, in a topological order.
            token: Cancellation token; a caller that is stopped rolls back what has been done.
        """
        self._log.record(graph.extend, tuple(token.checked(graph)))
        for some in token.batched(nodes):
            graph.extend(some)

    # -- operands and results ------------------------------------------------------------------------------------

    def set_input(self, node: ir.Node, position: int, value: ir.Value | None) -> None:
        """Let a node use another value at one input.

        Args:
            node: A node of the model.
            position: The input's index; inputs are appended as needed.
            value: A value in reach of the node, a new `constant`, or None to leave the input out.
        """
        if position >= len(node.inputs):
            had = len(node.inputs)
            node.resize_inputs(position + 1)
            self._log.record(node.resize_inputs, had)
        if value is not None and is_detached_constant(value):
            value = self._materialize(value, node, node)
        old = node.inputs[position]
        if old is value:
            return
        replace_input(node, position, value)
        self.touched.append(node)
        if old is None or value is None or not infers_alike(old, value):
            self._outdated.append(node)
        self._log.record(replace_input, node, position, old)
        if old is not None and not use_count(old):
            self._freed(old)

    def set_inputs(self, node: ir.Node, values: Sequence[ir.Value | None]) -> None:
        """Give a node other inputs, as many as there are values.

        Args:
            node: A node of the model.
            values: Values in reach of the node, or None for an input left out.
        """
        old = tuple(node.inputs)
        _replace_inputs(node, values)
        self.touched.append(node)
        self._outdated.append(node)
        self._log.record(_replace_inputs, node, old)
        for value in dict.fromkeys(old):
            if value is not None and not use_count(value):
                self._freed(value)

    def set_attribute(self, node: ir.Node, attribute: ir.Attr) -> None:
        """Set or replace an attribute of a node that holds no graph.

        Args:
            node: A node of the model.
            attribute: The new attribute.

        Raises:
            ValueError: If it holds a graph: its nodes would come in unseen.
        """
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            raise ValueError(f"{attribute.name} holds a graph: build a new node with it, and insert that")
        self._set_attributes(node, {**node.attributes, attribute.name: attribute}.values())

    def remove_attribute(self, node: ir.Node, name: str) -> None:
        """Remove an attribute of a node, if it is there."""
        if name in node.attributes:
            self._set_attributes(node, [one for key, one in node.attributes.items() if key != name])

    def _set_attributes(self, node: ir.Node, attributes: Iterable[ir.Attr]) -> None:
        old = tuple(node.attributes.values())
        _set_attributes(node, tuple(attributes))
        self.touched.append(node)
        self._outdated.append(node)
        self._log.record(_set_attributes, node, old)

    def replace_uses(self, old: ir.Value, new: ir.Value) -> None:
        """Let every node that uses `old`, in subgraphs too, use `new`; graph outputs stay.

        Args:
            old: A value of the model.
            new: A value in reach of every user of `old`.
        """
        uses = old.uses()
        for node, position in uses:
            replace_input(node, position, new)
        self.touched.extend(node for node, _ in uses)
        if uses and not infers_alike(old, new):
            self._outdated.extend(node for node, _ in uses)
        self._log.record(replace_back, old, uses)
        if uses:
            self._freed(old)
        if new.dtype == ir.DataType.INT32:
            for node, _ in uses:
                if _needs_int64_axes(node):
                    self._widen_axes(node)

    def _widen_axes(self, node: ir.Node) -> None:
        """Give a Pad its axes as the constant that ONNX Runtime reads."""
        axes = node.inputs[_PAD_AXES]
        tensor = None if axes is None else semantics.constant_tensor(axes)
        assert tensor is not None
        self.set_input(node, _PAD_AXES, constant(tensor.numpy(), ir.DataType.INT64))

    def set_outputs(self, node: ir.Node, values: Sequence[ir.Value]) -> None:
        """Leave a node some of its outputs; nothing uses the others.

        Args:
            node: A node of the model.
            values: Those of its outputs that stay, in their order.
        """
        old = tuple(node.outputs)
        set_outputs(node, values)
        self.touched.append(node)
        self._log.record(set_outputs, node, old)

    def set_type(self, value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> None:
        """Set what is known of a value's type and shape."""
        had = value.type, value.shape
        _set_type(value, type_, shape)
        if use_count(value) and had != (type_, shape):
            self._outdated.extend(use.node for use in value.uses())
        self._log.record(_set_type, value, *had)

    # -- constants ----------------------------------------------------------------------------------------------------

    def add_initializer(self, graph: ir.Graph, value: ir.Value) -> None:
        """Register a loose constant (see `constant`) as an initializer.

        Args:
            graph: A graph that may hold initializers.
            value: A constant of no graph; it gets a name if it has none.
        """
        assert value.const_value is not None
        if value.name is None:
            set_name(value, self.fresh_name("constant"))
        self._log.put(graph.initializers, value.name, value)
        self._count(value.const_value.nbytes)

    def remove_initializers(
        self, graph: ir.Graph, values: Iterable[ir.Value], token: CancellationToken = NEVER
    ) -> None:
        """Drop initializers that nothing uses; their bytes were counted when the last use went.

        Args:
            graph: The graph that holds them.
            values: Initializers of the graph, neither used nor inputs nor outputs of it.
            token: Cancellation token; a caller that is stopped rolls back what has been done.
        """
        for value in token.checked(values):
            if value.name is not None:
                self._log.take(graph.initializers, value.name)

    def needs_constant_nodes(self, graph: ir.Graph) -> bool:
        """Whether a graph cannot hold new initializers: functions, and before IR version 4 what has no inputs."""
        where = scope.of(graph)
        return where.in_function or (self.model.ir_version < 4 and where.parent is not None)

    def place(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """Give a new constant (see `constant`) a place, so that every node from `before` on may use it.

        Args:
            value: A constant of no graph, without users.
            before: A node of the graph.

        Returns:
            The value to use: `value`, or the output of a Constant node.
        """
        return self._materialize(value, before, *self.offered)

    def _materialize_constants(self, node: ir.Node, before: ir.Node) -> None:
        for value in node.inputs:
            if value is not None and is_detached_constant(value):
                self._materialize(value, before, node)

    def _materialize(self, value: ir.Value, before: ir.Node, *readers: ir.Node) -> ir.Value:
        """Give a loose constant a place: in the initializers, or as a Constant node in front of `before`.

        Args:
            value: The constant.
            before: A node of the graph.
            readers: The nodes that it is for, by which it is named.
        """
        graph = scope.graph_of(before)
        assert value.const_value is not None
        if not self.needs_constant_nodes(graph):
            if value.name is None:
                set_name(value, self.fresh_name(constant_name(readers)))
            self.add_initializer(graph, value)
            return value
        node = self._constant_node(value.const_value, before)
        self._inherit([node], readers)
        self._insert([node], before)
        for user, position in value.uses():
            replace_input(user, position, node.outputs[0])
        return node.outputs[0]

    def _constant_node(self, content: ir.TensorProtocol, before: ir.Node) -> ir.Node:
        """A Constant node for the graph of another node.

        Raises:
            Conflict: There, a Constant node can hold floats only.
        """
        imports = (scope.of_node(before).opset_imports, self.model.opset_imports)
        opset = min(one.get("", CONSTANTS_OF_ANY_TYPE_FROM) for one in imports)
        if opset < CONSTANTS_OF_ANY_TYPE_FROM and content.dtype not in FLOATS:
            raise Conflict(f"a Constant node of opset {opset} holds floats only")
        node = ir.node("Constant", [], attributes={"value": content})
        node.outputs[0].const_value = content
        return node

    def _freed(self, value: ir.Value) -> None:
        if value.is_graph_input() or value.is_graph_output():
            return
        if value.is_initializer() and value.const_value is not None:
            self._freed_initializers[value] = None
            self._count(-value.const_value.nbytes)

    def _count(self, nbytes: int) -> None:
        self.added_bytes += nbytes
        self._log.record(self._uncount, nbytes)

    def _uncount(self, nbytes: int) -> None:
        self.added_bytes -= nbytes


def _needs_int64_axes(node: ir.Node) -> bool:
    """Whether ONNX Runtime 1.31 would not load a Pad: it reads axes that are constant as int64, whatever they are."""
    if node.op_type != "Pad" or node.domain or len(node.inputs) <= _PAD_AXES:
        return False
    axes = node.inputs[_PAD_AXES]
    return axes is not None and axes.dtype == ir.DataType.INT32 and semantics.constant_tensor(axes) is not None


def other_versions(nodes: Sequence[ir.Node], source: ir.Graph, target: ir.Graph) -> list[ir.Node]:
    """The nodes, and those below them, of domains that one graph imports in another version than another graph."""
    have, wants = scope.of(source).opset_imports, scope.of(target).opset_imports
    if have is wants or have == wants:
        return []
    differ = {domain for domain in {**have, **wants} if have.get(domain) != wants.get(domain)}
    return [one for node in nodes for one in scope.with_nested(node) if one.domain in differ]


def constant_bytes(node: ir.Node) -> int:
    """The bytes that a Constant node holds; 0 for other nodes."""
    content = semantics.constant_tensor(node.outputs[0]) if node.op_type == "Constant" and node.outputs else None
    return 0 if content is None else content.nbytes


def _replace_inputs(node: ir.Node, values: Sequence[ir.Value | None]) -> None:
    node.resize_inputs(0)
    node.resize_inputs(len(values))
    for position, value in enumerate(values):
        replace_input(node, position, value)


def _set_attributes(node: ir.Node, attributes: tuple[ir.Attr, ...]) -> None:
    node.attributes.clear()
    for attribute in attributes:
        node.attributes[attribute.name] = attribute


def replace_back(old: ir.Value, uses: Collection[Usage]) -> None:
    """Let nodes use a value again at the positions where they did."""
    for node, position in uses:
        replace_input(node, position, old)


def _set_type(value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> None:
    value.type = type_
    value.shape = shape
