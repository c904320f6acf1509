"""Every change of a graph goes through an `Editor`: it can undo, it keeps names, types, metadata and the index.

Changes are logged as (function, arguments) pairs that take them back; rolling back replays the log in reverse, so that
the model serializes to the same bytes as before.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import facts, scope
from ortopt.graph.index import OpIndex
from ortopt.graph.names import set_name
from ortopt.graph.onnx_ir_internals import (
    Usage,
    first_use,
    get_meta,
    meta_of,
    output_count,
    previous_node,
    replace_input,
    set_outputs,
    trivially_same_type,
    unlink,
    use_count,
)
from ortopt.graph.order import in_order, is_sorted
from ortopt.graph.places import Entries, Places
from ortopt.graph.provenance import ORIGIN_KEY, PASS_KEY
from ortopt.graph.symbolic import canonical, is_known

Undo = tuple[Callable[..., None], tuple[Any, ...]]


_PAD_AXES = 3
_SEQUENCES = frozenset({"SequenceConstruct", "SplitToSequence"})  # nothing is kept of what they hold: readers ask these
_MAX_TIMES = 8  # as often one node is inferred again at a time: shapes get better in few steps


class Conflict(Exception):  # noqa: N818 -- not an error: a rewrite that cannot be, told by its reason
    """A replacement that would break what the framework keeps; nothing has been changed."""


class TooLarge(Conflict):
    """A rewrite that would let the file grow by more than it may.

    Args:
        nbytes: How much it would add.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        super().__init__(f"the file would grow by more than it may: by {nbytes} bytes")


def constant(
    content: ir.TensorProtocol | np.ndarray | Sequence[int] | Sequence[float] | int | float,
    dtype: ir.DataType | None = None,
) -> ir.Value:
    """A new constant, for use as an input of new nodes.

    The editor makes it an initializer where the graph may have them, a Constant node elsewhere (in functions, and
    before IR version 4, when an initializer had to be an input).

    Args:
        content: A tensor, or numbers; Python ints become int64, floats float32 unless `dtype` says otherwise.
        dtype: The element type, for numbers.

    Returns:
        A value that is in no graph yet.
    """
    # Numbers are asked for first: whether something is a TensorProtocol costs 0.2 ms the first time, 20 µs later.
    numbers = isinstance(content, np.ndarray | np.generic | int | float | Sequence)
    tensor: Any = _tensor(content, dtype) if numbers else content
    value = ir.Value(name=None, const_value=tensor)
    value.dtype = tensor.dtype
    value.shape = ir.Shape(tensor.shape.dims, frozen=True)
    return value


def _tensor(content: Any, dtype: ir.DataType | None) -> ir.TensorProtocol:
    array = np.asarray(content)
    if dtype is not None:
        array = array.astype(dtype.numpy())
    elif not isinstance(content, np.ndarray | np.generic):
        array = array.astype(np.float32) if array.dtype.kind == "f" else array.astype(np.int64)
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype)


class Editor:
    """Changes one model, and can take every change back.

    Args:
        model: The model; `scope.attach` has seen it.
        infer: Called with each new node after its insertion; sets the types and shapes of its outputs.
        token: Cancellation token from being made.

    Attributes:
        index: The nodes of each graph by op, kept current.
        touched: Nodes whose inputs, outputs or neighbours changed, oldest first; only grows.
        added_bytes: Bytes of constants that edits have added, less those that they have freed.
        allowance: What `added_bytes` may come to (`semantics.growth_allowance`).
        author: The transformer that edits now: it goes into the new nodes' metadata.
        clock: Grows with every change, and never goes back: equal readings mean an unchanged model.
    """

    def __init__(self, model: ir.Model, infer: Callable[[ir.Node], None], token: CancellationToken = NEVER) -> None:
        self.model = model
        self.index = OpIndex(model, token)
        self.touched: list[ir.Node] = []
        self.added_bytes = 0
        self.allowance = sys.maxsize
        self.author = ""
        self.clock = 0
        self._freed_initializers: dict[ir.Value, None] = {}
        self._position: dict[ir.Value, int] = {}
        self._infer = infer
        self._log: list[Undo] = []
        self._places = Places()
        self._names: set[str] | None = None
        self._numbers: dict[str, int] = {}
        self._outdated: list[ir.Node] = []
        self._unsorted: set[ir.Graph] = set()

    # -- the log ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """A point to go back to (see `rollback`)."""
        return len(self._log)

    def rollback(self, version: int, token: CancellationToken = NEVER) -> None:
        """Take back every change since `version` was read.

        Args:
            version: An earlier value of `Editor.version`.
            token: Cancellation token in the midst; it can be gone on with.
        """
        for _ in token.checked(range(len(self._log) - version)):
            undo, arguments = self._log.pop()
            undo(*arguments)
        self._places.restore()

    def _did(self, undo: Callable[..., None], *arguments: Any) -> None:
        self._log.append((undo, arguments))
        self.clock += 1

    def _put(self, entries: Entries, key: Any, value: Any) -> None:
        """Set an entry of a dictionary; a new one stands at the end."""
        if key in entries:
            old, entries[key] = entries[key], value
            self._did(entries.__setitem__, key, old)
        else:
            entries[key] = value
            self._places.added(entries, key)
            self._did(self._undo_put, entries, key)

    def _undo_put(self, entries: Entries, key: Any) -> None:
        del entries[key]
        self._places.not_added(entries, key)

    def _take(self, entries: Entries, key: Any) -> None:
        """Take an entry out of a dictionary."""
        place, value = self._places.taking(entries), entries[key]
        del entries[key]
        self._did(self._undo_take, entries, key, value, place)

    def _undo_take(self, entries: Entries, key: Any, value: Any, place: int) -> None:
        entries[key] = value
        self._places.returned(entries, place)

    # -- single changes ---------------------------------------------------------------------------------------------

    def insert(self, nodes: Sequence[ir.Node], before: ir.Node, origin: Sequence[ir.Node] = ()) -> None:
        """Put new nodes into the graph of `before`, in front of it, with names, types and shapes.

        Args:
            nodes: Nodes of no graph, each after those that it uses.
            before: A node of the graph.
            origin: The nodes that the new ones stand for: provenance, and the source of metadata.
        """
        graph = scope.graph_of(before)
        for node in nodes:
            if origin:
                self._inherit(node, origin)
            self._name_node(node, before)
            self._materialize_constants(node, before)
            graph.insert_before(before, node)
            self._enter(graph, node)
            if _refuses_constant(node):
                self._widen_axes(node)
            self._infer(node)

    def append(self, graph: ir.Graph, node: ir.Node) -> None:
        """Put a new node at the end of a graph.

        Args:
            graph: Where to.
            node: A node of no graph, whose inputs are all in reach.
        """
        self._name_node(node, None)
        graph.append(node)
        self._enter(graph, node)
        self._infer(node)

    def _enter(self, graph: ir.Graph, node: ir.Node) -> None:
        if node.attributes.data:
            scope.attach_below(node)
        self.index.add(graph, node)
        self.touched.append(node)
        self._did(self._undo_insert, graph, node)
        if node.op_type == "Constant" and (nbytes := _constant_bytes(node)):
            self._count(nbytes)

    def _undo_insert(self, graph: ir.Graph, node: ir.Node) -> None:
        unlink(node)
        self.index.discard(graph, node)
        for user in _with_nested(node):
            _detach(user)

    def remove(self, node: ir.Node) -> None:
        """Take a node out of its graph; nothing uses its outputs. What it alone used stays (see `sweep`)."""
        graph = scope.graph_of(node)
        before = previous_node(node)
        inputs: list[tuple[ir.Node, tuple[ir.Value | None, ...]]] = []
        for user in _with_nested(node):
            inputs.append((user, tuple(user.inputs)))
            _detach(user)
        unlink(node)
        self.index.discard(graph, node)
        self._did(self._undo_remove, graph, node, before, inputs)
        for value in dict.fromkeys(value for _, used in inputs for value in used):
            if value is not None and not use_count(value):
                self._freed(value)
        if node.op_type == "Constant" and (nbytes := _constant_bytes(node)):
            self._count(-nbytes)

    def _undo_remove(
        self,
        graph: ir.Graph,
        node: ir.Node,
        before: ir.Node | None,
        inputs: list[tuple[ir.Node, tuple[ir.Value | None, ...]]],
    ) -> None:
        if before is not None:
            graph.insert_after(before, node)
        elif len(graph):
            graph.insert_before(graph[0], node)
        else:
            graph.append(node)
        self.index.add(graph, node)
        for user, values in inputs:
            for position, value in enumerate(values):
                replace_input(user, position, value)

    def _freed(self, value: ir.Value) -> None:
        if value.is_graph_input() or value.is_graph_output():
            return
        if value.is_initializer() and value.const_value is not None:
            self._freed_initializers[value] = None
            self._count(-value.const_value.nbytes)

    def _count(self, nbytes: int) -> None:
        self.added_bytes += nbytes
        self._did(self._uncount, nbytes)

    def _uncount(self, nbytes: int) -> None:
        self.added_bytes -= nbytes

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
            self._did(node.resize_inputs, had)
        if value is not None and _is_loose(value):
            value = self._materialize(value, node)
        old = node.inputs[position]
        if old is value:
            return
        replace_input(node, position, value)
        self.touched.append(node)
        if old is None or value is None or not _alike(old, value):
            self._outdated.append(node)
        self._did(replace_input, node, position, old)
        if old is not None and not use_count(old):
            self._freed(old)

    def set_attribute(self, node: ir.Node, attribute: ir.Attr) -> None:
        """Set or replace an attribute of a node that holds no graph.

        Args:
            node: A node of the model.
            attribute: The new attribute.
        """
        old = tuple(node.attributes.values())
        node.attributes[attribute.name] = attribute
        self.touched.append(node)
        self._outdated.append(node)
        self._did(_set_attributes, node, old)

    def remove_attribute(self, node: ir.Node, name: str) -> None:
        """Remove an attribute of a node, if it is there."""
        if name not in node.attributes:
            return
        old = tuple(node.attributes.values())
        del node.attributes[name]
        self.touched.append(node)
        self._outdated.append(node)
        self._did(_set_attributes, node, old)

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
        if uses and not _alike(old, new):
            self._outdated.extend(node for node, _ in uses)
        self._did(_replace_back, old, uses)
        if uses:
            self._freed(old)
        if new.dtype == ir.DataType.INT32:
            for node, _ in uses:
                if _refuses_constant(node):
                    self._widen_axes(node)

    def _widen_axes(self, node: ir.Node) -> None:
        """Give a Pad its axes as the constant that ONNX Runtime reads."""
        axes = node.inputs[_PAD_AXES]
        tensor = None if axes is None else semantics.constant_tensor(axes)
        assert tensor is not None
        self.set_input(node, _PAD_AXES, constant(tensor.numpy(), ir.DataType.INT64))

    def set_output(self, graph: ir.Graph, position: int, value: ir.Value) -> None:
        """Make a value an output of a graph, in place of another; the name is the caller's to keep (see `replace`)."""
        old = graph.outputs[position]
        graph.outputs[position] = value
        self._position[value] = position
        self._did(graph.outputs.__setitem__, position, old)
        if (producer := value.producer()) is not None:
            self.touched.append(producer)  # what its result goes into is another one

    def _positions(self, graph: ir.Graph, value: ir.Value) -> list[int]:
        """The places of a value among the outputs of a graph, of which there may be thousands."""
        count, outputs = output_count(graph, value), graph.outputs
        if count > 1:
            return [position for position, output in enumerate(outputs) if output is value]
        if not count:
            return []
        place = self._position.get(value, len(outputs))
        if place >= len(outputs) or outputs[place] is not value:
            self._position.update((output, position) for position, output in enumerate(outputs))
        return [self._position[value]]

    def rename(self, value: ir.Value, name: str | None) -> None:
        """Rename a value that is no initializer.

        Args:
            value: A node's output.
            name: The new name; unique unless its present bearer is about to go.
        """
        old = value.name
        if old == name:
            return
        set_name(value, name)
        if name is not None and self._names is not None:
            self._names.add(name)
        self._did(set_name, value, old)

    def set_type(self, value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> None:
        """Set what is known of a value's type and shape."""
        had = value.type, value.shape
        _set_type(value, type_, shape)
        if use_count(value) and had != (type_, shape):
            self._outdated.extend(use.node for use in value.uses())
        self._did(_set_type, value, *had)

    def add_initializer(self, graph: ir.Graph, value: ir.Value) -> None:
        """Register a loose constant (see `constant`) as an initializer.

        Args:
            graph: A graph that may hold initializers.
            value: A constant of no graph; it gets a name if it has none.
        """
        assert value.const_value is not None
        if value.name is None:
            set_name(value, self.fresh_name("constant"))
        self._put(graph.initializers, value.name, value)
        self._count(value.const_value.nbytes)

    def adopt_initializer(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """Bring an initializer of a graph below into the graph of a node, under a new name.

        Args:
            value: An initializer that is no input of its graph.
            before: A node of the graph that shall have it, and that stands before all uses.

        Returns:
            The value that all uses now read: `value`, or the output of a Constant node.
        """
        source, target = value.graph, scope.graph_of(before)
        assert isinstance(source, ir.Graph)
        assert value.name is not None
        assert value.const_value is not None
        self._take(source.initializers, value.name)
        if self.needs_constant_nodes(target):
            node = ir.node("Constant", [], attributes={"value": value.const_value})
            node.outputs[0].const_value = value.const_value
            self.insert([node], before)
            self.replace_uses(value, node.outputs[0])
            return node.outputs[0]
        self.rename(value, self.fresh_name(value.name))
        self._put(target.initializers, value.name, value)
        return value

    def clear_outputs(self, graph: ir.Graph) -> None:
        """Let a graph that is about to go forget its outputs, so that they can be used elsewhere."""
        old = tuple(graph.outputs)
        graph.outputs.clear()
        self._did(graph.outputs.extend, old)

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
        self._did(_replace_inputs, node, old)
        for value in dict.fromkeys(old):
            if value is not None and not use_count(value):
                self._freed(value)

    def set_outputs(self, node: ir.Node, values: Sequence[ir.Value]) -> None:
        """Leave a node some of its outputs; nothing uses the others.

        Args:
            node: A node of the model.
            values: Those of its outputs that stay, in their order.
        """
        old = tuple(node.outputs)
        set_outputs(node, values)
        self.touched.append(node)
        self._did(set_outputs, node, old)

    def set_graph_inputs(self, graph: ir.Graph, values: Sequence[ir.Value]) -> None:
        """Leave a graph below a node some of its inputs; nothing uses the others.

        Raises:
            Conflict: The node is none of the standard's control flow, and may ask for the inputs.
        """
        _check_owned(graph)
        old = tuple(graph.inputs)
        _replace_list(graph.inputs, values)
        self._did(_replace_list, graph.inputs, old)

    def set_graph_outputs(self, graph: ir.Graph, values: Sequence[ir.Value]) -> None:
        """Leave a graph below a node some of its outputs, and remove what only the others needed.

        Raises:
            Conflict: The node is none of the standard's control flow, and may ask for the outputs.
        """
        _check_owned(graph)
        old = tuple(graph.outputs)
        _replace_list(graph.outputs, values)
        self._did(_replace_list, graph.outputs, old)
        self.sweep([producer for value in old if (producer := value.producer()) is not None])

    def inline(self, graph: ir.Graph, before: ir.Node, prefix: str) -> tuple[list[ir.Node], list[ir.Value]]:
        """Move what a graph below a node holds in front of the node.

        Args:
            graph: The graph; it is empty afterwards. Nothing uses its inputs any more.
            before: The node that holds it, in the graph that gets its nodes and initializers.
            prefix: What the new names of its values begin with: elsewhere the same names may be used.

        Returns:
            The moved nodes, and the values that the graph returned.
        """
        results = list(graph.outputs)
        known = [(result, shape) for result in results if (shape := facts.shape_of(result)) is not result.shape]
        self.clear_outputs(graph)
        for result, shape in known:  # what the graph declared is no interface any more
            self.set_type(result, result.type, shape)
        adopted = {value: self.adopt_initializer(value, before) for value in tuple(graph.initializers.data.values())}
        results = [adopted.get(result, result) for result in results]
        moved = list(graph)
        for inner in moved:
            self.move_before(inner, before)
            for value in inner.outputs:
                if value.name:
                    self.rename(value, self.fresh_name(f"{prefix}/{value.name}"))
        return moved, results

    def replace_and_remove(
        self, node: ir.Node, replacements: Mapping[ir.Value, ir.Value], own: Iterable[ir.Node]
    ) -> None:
        """Let existing values stand for the outputs of a node, and remove the node with all that it holds.

        Args:
            node: A node; each output that is needed is replaced.
            replacements: Output of the node to the value that stands for it, in reach of all users.
            own: Nodes that came for this one: the values of these may take the names of what they replace.

        Raises:
            Conflict: If a replacement cannot be; what was changed before it has to be rolled back.
        """
        nameless = {value for inner in own for value in inner.outputs}
        operands = [value for user in _with_nested(node) for value in user.inputs if value is not None]
        settled: dict[ir.Value, ir.Value] = {}
        for old, new in replacements.items():
            result = new
            if result in nameless and not old.is_graph_output():
                name = old.name
                self.rename(old, self.fresh_name(f"{name}/replaced"))
                self.rename(result, name)
            elif result not in nameless and old.is_graph_output():
                copy = ir.node("Identity", [result])
                self.insert([copy], node, [node])
                result = copy.outputs[0]
            nameless.discard(result)  # it has found its name
            settled[old] = result
        self.replace(settled, before=node, origin=[node])
        if node.graph is not None:  # it may hold what is never removed on its own
            self.remove(node)
            self.sweep([producer for value in operands if (producer := value.producer()) is not None])

    def drop_freed_initializers(self, token: CancellationToken = NEVER) -> None:
        """Remove the initializers that edits have left without any use.

        Args:
            token: Who may stop it in the midst; what has been done is the caller's to roll back, and it must be called
                again.
        """
        by_graph: dict[ir.Graph, list[ir.Value]] = {}
        for value in token.checked(self._freed_initializers):
            if value.graph is not None and not use_count(value) and not value.is_graph_output():
                by_graph.setdefault(value.graph, []).append(value)
        for graph, values in by_graph.items():
            self.remove_initializers(graph, values, token)
        self._freed_initializers.clear()

    def remove_initializers(
        self, graph: ir.Graph, values: Iterable[ir.Value], token: CancellationToken = NEVER
    ) -> None:
        """Drop initializers that nothing uses; their bytes were counted when the last use went.

        Args:
            graph: The graph that holds them.
            values: Initializers of the graph, neither used nor inputs nor outputs of it.
            token: Cancellation token in the midst; what has been done is the caller's to roll back.
        """
        for value in token.checked(values):
            if value.name is not None:
                self._take(graph.initializers, value.name)

    def set_opset(self, imports: dict[str, int], domain: str, version: int) -> None:
        """Import a domain at a version into a model or a function.

        Args:
            imports: The `opset_imports` to change.
            domain: The domain; the empty string is ai.onnx.
            version: The opset version.
        """
        if imports.get(domain) != version:
            self._put(imports, domain, version)

    def remove_opset(self, imports: dict[str, int], domain: str) -> None:
        """Drop the import of a domain that nothing uses."""
        self._take(imports, domain)

    def remove_function(self, function: ir.Function) -> None:
        """Drop a local function that nothing calls."""
        self._take(self.model.functions, function.identifier())
        for graph in scope.below(function.graph):
            self._count(-sum(_constant_bytes(node) for node in graph))
            self.index.drop(graph)
            self._did(self.index.build, graph)

    def outline(
        self,
        nodes: Sequence[ir.Node],
        function: ir.Function,
        call: ir.Node,
        renamed: Mapping[ir.Value, ir.Value],
        outputs: Sequence[ir.Value],
        token: CancellationToken,
    ) -> None:
        """Move nodes of a graph into a new function, and put a call in front of where the first of them stood.

        The order of the graph is the caller's to restore (see `reorder`).

        Args:
            nodes: Nodes of one graph, in topological order.
            function: A function that the model does not have yet, with its inputs and perhaps constants.
            call: A new node that calls it, with an output for each of `outputs`.
            renamed: What each value of the outside that the nodes, or graphs below them, use is in the function.
            outputs: The results of the nodes that the outside needs.
            token: Cancellation token in the midst; what has been done is the caller's to roll back.
        """
        graph, body = scope.graph_of(nodes[0]), function.graph
        self._put(self.model.functions, function.identifier(), function)
        scope.attach_function(function, self.model, scope.of(graph).options, token)
        body.meta[facts.OPSETS] = function.opset_imports
        self.index.build(body, token)
        self._did(self.index.drop, body)
        self._count(sum(map(_constant_bytes, token.checked(body))))
        graph.insert_before(nodes[0], call)
        self.index.add(graph, call)
        self.touched.append(call)
        self._did(self._undo_insert, graph, call)
        for node in token.checked(nodes):
            self._move_into(body, node)
            self._rename_operands(node, renamed)
        for inner, outer in token.checked(zip(outputs, call.outputs, strict=True)):
            self._expose(graph, function, inner, outer)

    def _move_into(self, body: ir.Graph, node: ir.Node) -> None:
        source, before = scope.graph_of(node), previous_node(node)
        self.index.discard(source, node)
        unlink(node)
        body.append(node)
        self.index.add(body, node)
        if node.attributes.data:
            scope.attach_below(node)
        self.touched.append(node)
        self._did(self._undo_move, node, source, body, before)

    def _rename_operands(self, node: ir.Node, renamed: Mapping[ir.Value, ir.Value]) -> None:
        for user in _with_nested(node):
            old = [(position, value) for position, value in enumerate(user.inputs) if value in renamed]
            for position, value in old:
                assert value is not None
                replace_input(user, position, renamed[value])
            if old:
                self._did(_restore_inputs, user, old)
            for value in dict.fromkeys(value for _, value in old):
                if value is not None and not use_count(value):
                    self._freed(value)

    def _expose(self, graph: ir.Graph, function: ir.Function, inner: ir.Value, outer: ir.Value) -> None:
        """Let the outside use the result of a call where it used a value that is now in the function."""
        outer.name, outer.type, outer.shape, outer.doc_string = inner.name, inner.type, inner.shape, inner.doc_string
        outer.metadata_props.update(inner.metadata_props)
        outer.meta.update(inner.meta)
        uses = [use for use in inner.uses() if scope.of(scope.graph_of(use.node)).function is not function]
        for user, position in uses:
            replace_input(user, position, outer)
            self.touched.append(user)
        self._did(_replace_back, inner, uses)
        declared, known = inner.is_graph_output(), facts.shape_of(inner)
        for position in self._positions(graph, inner):
            self.set_output(graph, position, outer)
        function.outputs.append(inner)
        self._did(_remove_last, function.outputs)
        if declared:  # what the graph declares says nothing about the function
            self.set_type(inner, inner.type, None)
            producer = inner.producer()
            assert producer is not None
            if producer.op_identifier() not in self.model.functions:  # a call is not inferred by itself
                self._infer(producer)
                known = facts.shape_of(inner)
            self.set_type(inner, inner.type, known)

    def keep_arguments(self, function: ir.Function, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Let a function have only some of its inputs and outputs; its calls are the caller's to adapt.

        Args:
            function: A function of the model; the inputs that go are not used.
            inputs: The indices of the inputs that stay.
            outputs: The indices of the outputs that stay.
        """
        for values, kept in ((function.inputs, inputs), (function.outputs, outputs)):
            old = tuple(values)
            if len(kept) < len(old):
                values[:] = [old[place] for place in kept]
                self._did(values.__setitem__, slice(None), old)
        self.touched.extend(node for node in function.graph if not any(map(use_count, node.outputs)))

    def set_metadata(self, function: ir.Function, key: str, text: str) -> None:
        """Set an entry of a function's metadata."""
        if function.metadata_props.get(key) != text:
            self._put(function.metadata_props, key, text)

    def set_ir_version(self, version: int) -> None:
        """Let the model be of another IR version."""
        if version == self.model.ir_version:
            return
        self._did(_set_ir_version, self.model, self.model.ir_version)
        self.model.ir_version = version

    def reorder(self, graph: ir.Graph, nodes: Sequence[ir.Node], token: CancellationToken = NEVER) -> None:
        """Bring the nodes of a graph into another order.

        Args:
            graph: The graph.
            nodes: All of its nodes, in a topological order.
            token: Cancellation token in the midst; what has been done is the caller's to roll back.
        """
        self._did(graph.extend, tuple(token.checked(graph)))
        for some in token.batched(nodes):
            graph.extend(some)

    def move_before(self, node: ir.Node, anchor: ir.Node) -> None:
        """Move a node, in one graph or into that of `anchor`, with the graphs below it.

        Args:
            node: A node of the model.
            anchor: The node that it shall stand before.
        """
        source, target = scope.graph_of(node), scope.graph_of(anchor)
        before = previous_node(node)
        self.index.discard(source, node)
        unlink(node)
        target.insert_before(anchor, node)
        self.index.add(target, node)
        scope.attach_below(node)
        self.touched.append(node)
        self._did(self._undo_move, node, source, target, before)

    def _undo_move(self, node: ir.Node, source: ir.Graph, target: ir.Graph, before: ir.Node | None) -> None:
        self.index.discard(target, node)
        unlink(node)
        if before is not None:
            source.insert_after(before, node)
        elif len(source):
            source.insert_before(source[0], node)
        else:
            source.append(node)
        self.index.add(source, node)
        scope.attach_below(node)

    # -- names ------------------------------------------------------------------------------------------------------

    def fresh_name(self, hint: str) -> str:
        """A name that no value and no node of the model bears.

        Args:
            hint: What it shall look like.
        """
        names = self.learn_names()
        name, number = hint, self._numbers.get(hint, 0)
        while name in names:
            number += 1
            name = f"{hint}_{number}"
        if number:
            self._numbers[hint] = number  # thousands may ask with one hint
        names.add(name)
        return name

    def learn_names(self, token: CancellationToken = NEVER) -> set[str]:
        """The names that values and nodes of the model bear. Linear in the nodes the first time, free afterwards.

        Args:
            token: Cancellation token.
        """
        if self._names is None:
            names: set[Any] = set()
            for graph in self.index.graphs():
                names.update(value.name for value in graph.inputs)
                names.update(token.checked(graph.initializers))
                for node in token.checked(graph):
                    names.add(node.name)
                    for value in node.outputs:
                        names.add(value.name)
            names.discard(None)
            names.discard("")
            self._names = names
        return self._names

    def forget_names(self) -> None:
        """Let the names of what has gone be given again. The next `fresh_name` is linear in the nodes."""
        self._names = None
        self._numbers.clear()

    def _name_node(self, node: ir.Node, near: ir.Node | None) -> None:
        if not node.name:
            hint = near.name if near is not None and near.name else node.op_type
            node.name = self.fresh_name(f"{hint}/{node.op_type}" if hint != node.op_type else hint)
        for value in node.outputs:
            if value.name is None:
                set_name(value, self.fresh_name(f"{node.name}_output"))

    # -- constants --------------------------------------------------------------------------------------------------

    def _materialize_constants(self, node: ir.Node, before: ir.Node) -> None:
        for value in node.inputs:
            if value is not None and _is_loose(value):
                self._materialize(value, before)

    def place(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """Give a new constant (see `constant`) a place, so that every node from `before` on may use it.

        Args:
            value: A constant of no graph, without users.
            before: A node of the graph.

        Returns:
            The value to use: `value`, or the output of a Constant node.
        """
        return self._materialize(value, before)

    def _materialize(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """Give a loose constant a place: in the initializers, or as a Constant node in front of `before`."""
        graph = scope.graph_of(before)
        assert value.const_value is not None
        if not self.needs_constant_nodes(graph):
            if value.name is None:
                set_name(value, self.fresh_name(f"{before.outputs[0].name or before.op_type}_constant"))
            self.add_initializer(graph, value)
            return value
        node = ir.node("Constant", [], attributes={"value": value.const_value})
        node.outputs[0].const_value = value.const_value
        self.insert([node], before)
        for user, position in value.uses():
            replace_input(user, position, node.outputs[0])
        return node.outputs[0]

    def needs_constant_nodes(self, graph: ir.Graph) -> bool:
        """Whether a graph cannot hold new initializers: functions, and before IR version 4 what has no inputs."""
        where = scope.of(graph)
        return where.in_function or (self.model.ir_version < 4 and where.parent is not None)

    # -- replacing --------------------------------------------------------------------------------------------------

    def replace(
        self,
        replacements: Mapping[ir.Value, ir.Value],
        before: ir.Node,
        origin: Sequence[ir.Node] = (),
        accept: Callable[[Sequence[ir.Node]], None] | None = None,
    ) -> list[ir.Node]:
        """Let new values stand for old ones, and drop what became dead.

        New nodes (those behind the new values that are in no graph yet) are put in front of `before`. Names, types,
        shapes and metadata of the old values pass to the new ones; graph outputs keep their names.

        Args:
            replacements: Old value to new value: an output of a new node, an existing value, or a new `constant`.
            before: A node of the graph; the new nodes' operands are all defined before it.
            origin: The nodes that the new ones stand for: provenance, and the source of metadata.
            accept: Asked about the new nodes, with their types and shapes; raises `Conflict` to refuse them.

        Returns:
            The new nodes, in order.

        Raises:
            Conflict: If a replacement would change the interface, a type or a shape, or let the file grow by more
                than it may; nothing is changed then.
        """
        start, bytes_before, clock, outdated = self.version, self.added_bytes, self.clock, len(self._outdated)
        graph = scope.graph_of(before)
        nodes = new_nodes(replacements.values())
        fresh = set(nodes)
        try:
            for node in nodes:
                self._inherit(node, origin)
            for old, new in replacements.items():
                if new.producer() in fresh:
                    name = old.name
                    self.rename(old, self.fresh_name(f"{name}/replaced"))
                    set_name(new, name)
            self.insert(nodes, before)
            if accept is not None:
                accept(nodes)
            for old, new in replacements.items():
                self._substitute(graph, old, new, new.producer() in fresh, before)
            self.sweep([producer for old in replacements if (producer := old.producer()) is not None])
            if self.added_bytes > max(self.allowance, bytes_before):
                raise TooLarge(self.added_bytes - bytes_before)  # noqa: TRY301 -- one way back for all
        except BaseException:
            self.rollback(start)
            self.clock = clock  # the model is as it was: a refusal is no change
            del self._outdated[outdated:]
            discard(nodes)
            raise
        if len(replacements) > 1 or any(old.producer() is not before for old in replacements):
            self._unsorted.add(graph)
        return nodes

    def _inherit(self, node: ir.Node, origin: Sequence[ir.Node]) -> None:
        node.meta[PASS_KEY] = self.author
        names: dict[str, None] = {}
        for source in origin:
            names.update(dict.fromkeys(get_meta(source, ORIGIN_KEY) or (source.name or source.op_type,)))
            for name, text in source.metadata_props.items():
                node.metadata_props.setdefault(name, text)
        node.meta[ORIGIN_KEY] = tuple(names)
        if not node.doc_string:
            node.doc_string = next((source.doc_string for source in origin if source.doc_string), None)

    def _substitute(self, graph: ir.Graph, old: ir.Value, new: ir.Value, fresh: bool, before: ir.Node) -> None:
        _agree(old, new)
        is_output = old.is_graph_output()
        if _is_loose(new):
            new = self._settle_constant(graph, old, new, before)
        elif is_output and not fresh:
            if new.graph is not graph or new.producer() is None or new.is_graph_output():
                raise Conflict("a graph output must keep its own name")
            name = old.name
            self.rename(old, self.fresh_name(f"{name}/replaced"))
            self.rename(new, name)
        if is_output:  # the interface: what the model declares, or leaves open, stays to the letter, and proves nothing
            known = _better_shape(facts.shape_of(new), facts.shape_of(old))
            self.set_type(new, old.type or new.type, old.shape)
            self._did(_set_fact, new, facts.SHAPE, new.meta.get(facts.SHAPE))
            facts.set_better_shape(new, None if known is None else known.dims)
        elif not new.is_graph_output() and not new.is_graph_input():  # what is declared for those stays too
            shape = _better_shape(new.shape, old.shape)
            if new.is_graph_output() or new.is_graph_input():  # interface too
                shape = new.shape
            if shape is not new.shape or new.type is None:
                self.set_type(new, new.type or old.type, shape)
        self._carry_metadata(old, new)
        self.replace_uses(old, new)
        if is_output:
            for position in self._positions(graph, old):
                self.set_output(graph, position, new)

    def _settle_constant(self, graph: ir.Graph, old: ir.Value, new: ir.Value, before: ir.Node) -> ir.Value:
        """Place a constant under the old value's name (an initializer renamed later would move to the end)."""
        name = old.name
        assert new.const_value is not None
        assert name is not None
        self.rename(old, self.fresh_name(f"{name}/replaced"))
        if not self.needs_constant_nodes(graph):
            set_name(new, name)
            self.add_initializer(graph, new)
            return new
        node = ir.node("Constant", [], attributes={"value": new.const_value})
        node.outputs[0].const_value = new.const_value
        set_name(node.outputs[0], name)
        self._inherit(node, [producer] if (producer := old.producer()) is not None else [])
        self.insert([node], before)
        return node.outputs[0]

    def _carry_metadata(self, old: ir.Value, new: ir.Value) -> None:
        annotation = semantics.QUANTIZATION_KEY
        for key in (annotation, facts.CLAIM):
            if get_meta(old, key) is not None and key not in new.meta:
                new.meta[key] = old.meta[key]
                self._did(_set_fact, new, key, None)
        if not old.metadata_props and not old.doc_string:
            return
        self._did(_restore_value, new, dict(new.metadata_props), new.doc_string)
        for name, text in old.metadata_props.items():
            new.metadata_props.setdefault(name, text)
        new.doc_string = new.doc_string or old.doc_string

    # -- dead nodes and order ---------------------------------------------------------------------------------------

    def sweep(self, nodes: Iterable[ir.Node], token: CancellationToken = NEVER) -> None:
        """Remove those of the nodes whose results nobody needs, and what only they needed.

        Args:
            nodes: Candidates; nodes that are in no graph, or needed, or not pure are left alone.
            token: Cancellation token in the midst; what has been done is the caller's to roll back.
        """
        pending = list(token.checked(nodes))
        functions = self.model.functions
        for node in token.checked(_taken_off(pending)):
            if node.graph is None or node.graph not in self.index:
                continue  # it is gone, perhaps with the node whose subgraph held it
            if any(use_count(out) or out.is_graph_output() for out in node.outputs):
                self.touched.append(node)  # others of its results may have lost their users
                continue
            if not semantics.is_removable(node, functions):
                continue
            operands: dict[ir.Value, None] = {}
            for user in _with_nested(node):
                operands.update(dict.fromkeys(value for value in user.inputs if value is not None))
            self.remove(node)
            for value in operands:
                producer = value.producer()
                if producer is not None:
                    if not use_count(value):
                        pending.append(producer)
                    else:
                        self.touched.append(producer)
                if use_count(value) == 1:
                    use = first_use(value)
                    assert use is not None
                    self.touched.append(use.node)

    def reinfer(self, infer: Callable[[ir.Node], None], token: CancellationToken = NEVER) -> bool:
        """Infer again the nodes whose operands edits have made better known, and what follows as far as it gets better.

        Args:
            infer: Infers a node that has been inferred before.
            token: Cancellation token; what is left then stays as it is.

        Returns:
            Whether anything is known otherwise than before; its users are touched then.
        """
        queue = deque(dict.fromkeys(node for node in token.checked(self._outdated) if node.graph is not None))
        self._outdated.clear()
        functions = self.model.functions
        queued, times, changed = set(queue), dict.fromkeys(queue, 0), False
        for node in token.checked(_drained(queue)):
            queued.discard(node)
            if node.graph is None or node.graph not in self.index or times[node] == _MAX_TIMES:
                continue
            if node.op_identifier() in functions:
                continue  # a call is not inferred by itself
            times[node] += 1
            for value in self._inferred_otherwise(node, infer):
                changed = True
                for user in self._followers(value):
                    self.touched.append(user)
                    times.setdefault(user, 0)
                    if user not in queued:
                        queued.add(user)
                        queue.append(user)
        return changed

    def _inferred_otherwise(self, node: ir.Node, infer: Callable[[ir.Node], None]) -> list[ir.Value]:
        """The values of a node, and of the graphs below it, of which inference now says something else, or may say."""
        values = [value for user in _with_nested(node) for value in user.outputs]
        if node.attributes.data:
            values += [value for graph in scope.nested(node) for value in graph.inputs]
        before = [(value.type, value.shape, dict(value.meta)) for value in values]
        infer(node)
        found = []
        for value, (type_, shape, meta) in zip(values, before, strict=True):
            if value.type == type_ and value.shape == shape and value.meta == meta:
                continue
            self._did(_restore_facts, value, type_, shape, meta)
            found.append(value)
        if node.op_type in _SEQUENCES and not found:
            found.extend(node.outputs)
        return found

    def _followers(self, value: ir.Value) -> list[ir.Node]:
        """The users of a value, and the node whose graph gives it."""
        users = [use.node for use in value.uses()]
        if value.is_graph_output() and value.graph is not None:
            above = scope.of(value.graph).parent
            if isinstance(above, ir.Node):
                users.append(above)
        return users

    def needs_order(self, graph: ir.Graph) -> None:
        """Say that new nodes of a graph may stand before what they use (see `restore_order`)."""
        self._unsorted.add(graph)

    def restore_order(self, token: CancellationToken = NEVER) -> None:
        """Sort the graphs in which a node may stand before what it uses.

        Args:
            token: Who may stop it in the midst; what has been done is the caller's to roll back, and it must be called
                again.
        """
        for graph in self._unsorted:
            if is_sorted(graph, token):
                continue
            for at, nodes in in_order(graph, token).items():
                old = list(at)
                if old != nodes:
                    self._did(at.extend, old)
                    for some in token.batched(nodes):
                        at.extend(some)
        self._unsorted.clear()


def new_nodes(values: Iterable[ir.Value]) -> list[ir.Node]:
    """The nodes behind some values that are in no graph yet, each after those that it uses."""
    ordered: dict[ir.Node, None] = {}
    pending = [(producer, False) for value in values if (producer := value.producer()) is not None]
    while pending:
        node, ready = pending.pop()
        if node.graph is not None or node in ordered:
            continue
        if ready:
            ordered[node] = None
            continue
        pending.append((node, True))
        operands = [value.producer() for value in reversed(node.inputs) if value is not None]
        pending.extend((producer, False) for producer in operands if producer is not None)
    return list(ordered)


def discard(nodes: Iterable[ir.Node]) -> None:
    """Let go of new nodes that will not be used: they no longer count as users of anything."""
    for node in nodes:
        if node.graph is None:
            for user in _with_nested(node):
                _detach(user)


def detach_orphans(nodes: Iterable[ir.Node]) -> None:
    """Detach nodes of no graph from what some nodes read and give: what a rewrite that raised has left behind."""
    for value in {value for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}:
        discard([use.node for use in value.uses() if use.node.graph is None])


def _agree(old: ir.Value, new: ir.Value) -> None:
    """Refuse a replacement of another type or of a shape that is provably another one."""
    if old.dtype is not None and new.dtype is not None and old.dtype != new.dtype:
        raise Conflict(f"the result would be {new.dtype.name.lower()} instead of {old.dtype.name.lower()}")
    before, after = facts.shape_of(old), facts.shape_of(new)
    if before is None or after is None:
        return
    if len(before) != len(after):
        raise Conflict(f"the result would have rank {len(after)} instead of {len(before)}")
    for had, has in zip(before.dims, after.dims, strict=True):
        if isinstance(had, int) and isinstance(has, int) and had != has:
            raise Conflict(f"the result would have the shape {after} instead of {before}")


def _alike(one: ir.Value, other: ir.Value) -> bool:
    """Whether inference finds the same for a node, whichever of the two it reads."""
    if trivially_same_type(one, other, facts.INTEGERS):
        return True
    type_ = one.type
    if type_ is not other.type and type_ != other.type:
        return False
    told = meta_of(one) or meta_of(other)
    if (told or one.shape is not other.shape) and facts.shape_of(one) != facts.shape_of(other):
        return False
    tensor, known = semantics.constant_tensor(one), semantics.constant_tensor(other)
    if tensor is not None and known is not None:
        return True
    if type_ is not None and type_.dtype in facts.INTEGERS:
        content = facts.all_contents(one)
        if content is not None and all(isinstance(element, int) for element in content):
            return True  # all that there is to know
        return content == facts.all_contents(other)
    constant_ = known if tensor is None else tensor
    return constant_ is None or constant_.size > facts.MAX_ELEMENTS  # inference may read few: the factors of a Resize


def _better_shape(new: ir.Shape | None, old: ir.Shape | None) -> ir.Shape | None:
    """The shape that says more: a known dimension beats an unknown one.

    It does not beat one that inference has invented: inference of the saved file would find that one again, and it may
    stand elsewhere too.

    Args:
        new: What inference finds.
        old: What was proven before.
    """
    if new is None or old is None or new is old or len(new) != len(old):
        return old if new is None else new
    if new.dims == old.dims:
        return new
    dims = tuple(had if not is_known(has) else has for has, had in zip(new.dims, old.dims, strict=True))
    return new if dims == new.dims else facts.shape_from(tuple(map(canonical, dims)))


def _check_owned(graph: ir.Graph) -> None:
    parent = scope.of(graph).parent
    if parent is not None and not semantics.owns_interfaces(parent):
        raise Conflict(f"{parent.op_type} may ask for the inputs and outputs of its graphs by name and number")


def _is_loose(value: ir.Value) -> bool:
    return value.producer() is None and value.graph is None and value.const_value is not None


def _refuses_constant(node: ir.Node) -> bool:
    """Whether ONNX Runtime 1.31 would not load a Pad: it reads axes that are constant as int64, whatever they are."""
    if node.op_type != "Pad" or node.domain or len(node.inputs) <= _PAD_AXES:
        return False
    axes = node.inputs[_PAD_AXES]
    return axes is not None and axes.dtype == ir.DataType.INT32 and semantics.constant_tensor(axes) is not None


def _constant_bytes(node: ir.Node) -> int:
    """The bytes that a Constant node holds; 0 for other nodes."""
    content = semantics.constant_tensor(node.outputs[0]) if node.op_type == "Constant" and node.outputs else None
    return 0 if content is None else content.nbytes


def _replace_inputs(node: ir.Node, values: Sequence[ir.Value | None]) -> None:
    node.resize_inputs(0)
    node.resize_inputs(len(values))
    for position, value in enumerate(values):
        replace_input(node, position, value)


def _replace_list(values: MutableSequence[ir.Value], by: Sequence[ir.Value]) -> None:
    values.clear()
    values.extend(by)


def _detach(node: ir.Node) -> None:
    for position in range(len(node.inputs)):
        replace_input(node, position, None)


def _with_nested(node: ir.Node) -> Iterable[ir.Node]:
    """A node and all nodes in the graphs below it."""
    if not node.attributes.data:
        return (node,)
    nodes = [node]
    for graph in semantics.subgraphs(node):
        for inner in scope.below(graph):
            nodes.extend(inner)
    return nodes


def _set_attributes(node: ir.Node, attributes: tuple[ir.Attr, ...]) -> None:
    node.attributes.clear()
    for attribute in attributes:
        node.attributes[attribute.name] = attribute


def _replace_back(old: ir.Value, uses: Collection[Usage]) -> None:
    for node, position in uses:
        replace_input(node, position, old)


def _set_type(value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> None:
    value.type = type_
    value.shape = shape


def _taken_off(pending: list[ir.Node]) -> Iterator[ir.Node]:
    """What is in a list, and what comes into it meanwhile, the last first."""
    while pending:
        yield pending.pop()


def _drained(queue: deque[ir.Node]) -> Iterator[ir.Node]:
    """What is in a queue, and what comes into it meanwhile."""
    while queue:
        yield queue.popleft()


def _restore_facts(
    value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None, meta: Mapping[str, object]
) -> None:
    _set_type(value, type_, shape)
    value.meta.clear()
    value.meta.update(meta)


def _restore_value(value: ir.Value, metadata: dict[str, str], doc_string: str | None) -> None:
    value.metadata_props.clear()
    value.metadata_props.update(metadata)
    value.doc_string = doc_string


def _set_fact(value: ir.Value, key: str, fact: object | None) -> None:
    if fact is None:
        value.meta.pop(key, None)
    else:
        value.meta[key] = fact


def _restore_inputs(node: ir.Node, inputs: Iterable[tuple[int, ir.Value | None]]) -> None:
    for position, value in inputs:
        replace_input(node, position, value)


def _remove_last(values: MutableSequence[ir.Value]) -> None:
    values.pop()  # onnx-ir does not see a ``del``


def _set_ir_version(model: ir.Model, version: int) -> None:
    model.ir_version = version
