"""Every change of a graph goes through an `Editor`: it can undo, it keeps names, types, metadata and the index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence

import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import facts, scope
from ortopt.graph.detached import constant, detach_orphans, discard, is_detached_constant, new_nodes
from ortopt.graph.heritage import origins_by_node
from ortopt.graph.model_edits import ModelEdits
from ortopt.graph.names import follows_node, set_name
from ortopt.graph.node_edits import Accept
from ortopt.graph.order import in_order, is_sorted
from ortopt.graph.provenance import MAX_VALUES, VALUES_KEY, values_of
from ortopt.graph.refusal import Code, Conflict
from ortopt.graph.symbolic import canonical, is_known
from ortopt.onnx_ir_internals import first_use, get_meta, initializers_of, set_meta, use_count


class TooLarge(Conflict):
    """A rewrite that would let the file grow by more than it may.

    Args:
        nbytes: How much it would add.
    """

    code = Code.SIZE

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        super().__init__(f"the file would grow by more than it may: by {nbytes} bytes")


class Editor(ModelEdits):
    """Changes one model, and can take every change back.

    Its single changes are `NodeEdits` and `ModelEdits`; here is what is made of them. It is composed of an
    `ortopt.graph.undo_log.UndoLog`, which takes changes back, a `ortopt.graph.names.NameRegistry`, which finds new
    names, a `ortopt.graph.reinference.Reinference`, which infers again what edits have made better known, and an
    `ortopt.graph.index.OpIndex`.

    Args:
        model: The model; `scope.attach` has seen it.
        infer: Called with each new node after its insertion; sets the types and shapes of its outputs.
        token: Cancellation token of the construction.
    """

    def __init__(self, model: ir.Model, infer: Callable[[ir.Node], None], token: CancellationToken = NEVER) -> None:
        super().__init__(model, infer, token)
        self._unsorted: set[ir.Graph] = set()

    # -- replacing --------------------------------------------------------------------------------------------------

    def replace(
        self,
        replacements: Mapping[ir.Value, ir.Value],
        before: ir.Node,
        origin: Sequence[ir.Node] = (),
        accept: Accept | None = None,
    ) -> list[ir.Node]:
        """Let new values stand for old ones, and drop what became dead.

        New nodes (those behind the new values that are in no graph yet) are put in front of `before`. Names, types,
        shapes and metadata of the old values pass to the new ones, but for names that follow from those of nodes; graph
        outputs keep their names.

        Args:
            replacements: Old value to new value: an output of a new node, an existing value, or a new `constant`.
            before: A node of the graph; the new nodes' operands are all defined before it.
            origin: The nodes that the new ones stand for: provenance, and the source of names and metadata.
            accept: Asked about the new nodes; None is who is asked about all (`accept` of the editor).

        Returns:
            The new nodes, in order; without those that nobody needs.

        Raises:
            Conflict: If a replacement would change the interface, a type or a shape, or let the file grow by more
                than it may; nothing is changed then.
        """
        start, bytes_before, clock, outdated = self.version, self.added_bytes, self.clock, len(self._outdated)
        graph = scope.graph_of(before)
        nodes = new_nodes(replacements.values())
        try:
            self._replace(replacements, nodes, before, origin, accept or self.accept)
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
        return [node for node in nodes if node.graph is not None]

    def _replace(
        self,
        replacements: Mapping[ir.Value, ir.Value],
        nodes: Sequence[ir.Node],
        before: ir.Node,
        origin: Sequence[ir.Node],
        accept: Accept | None,
    ) -> None:
        graph, fresh = scope.graph_of(before), set(nodes)
        self._inherit(nodes, origin, origins_by_node(replacements, nodes, origin or self.offered))
        for old, new in replacements.items():
            self._stand_for(old, new)
            if new.producer() in fresh and not follows_node(old):
                set_name(new, self._set_aside(old))
        self._insert(nodes, before)
        if accept is not None and nodes:
            accept(nodes, origin)
        for old, new in replacements.items():
            self._substitute(graph, old, new, new.producer() in fresh, before)
        self.sweep([producer for old in replacements if (producer := old.producer()) is not None])

    def _substitute(self, graph: ir.Graph, old: ir.Value, new: ir.Value, fresh: bool, before: ir.Node) -> None:
        _agree(old, new)
        is_output = old.is_graph_output()
        if is_detached_constant(new):
            new = self._settle_constant(graph, old, new, before)
        elif is_output and not fresh:
            if new.graph is not graph or new.producer() is None or new.is_graph_output():
                raise Conflict("a graph output must keep its own name")
            self.rename(new, self._set_aside(old))
        if is_output:  # the interface: what the model declares, or leaves open, stays to the letter, and proves nothing
            known = _better_shape(facts.shape_of(new), facts.shape_of(old))
            self.set_type(new, old.type or new.type, old.shape)
            self._log.record(set_meta, new, facts.SHAPE, new.meta.get(facts.SHAPE))
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
            for position in self.output_positions(graph, old):
                self.set_output(graph, position, new)

    def _set_aside(self, value: ir.Value) -> str | None:
        """Give a value that is about to be replaced another name; the one that it had."""
        name = value.name
        self.rename(value, self.fresh_name(name or "replaced"))
        return name

    def _stand_for(self, old: ir.Value, new: ir.Value) -> None:
        """Record in place of which of the original's values a new value is, beside those of before."""
        had = get_meta(new, VALUES_KEY)
        names = tuple(dict.fromkeys((*values_of(new), *values_of(old))))[:MAX_VALUES]
        if names and had not in (names, ()) and not is_detached_constant(new):
            new.meta[VALUES_KEY] = names
            self._log.record(set_meta, new, VALUES_KEY, had)

    def set_changed(self, values: Iterable[ir.Value]) -> None:
        """Record that values are none of the original's any more, nor what takes their place: others make up for it.

        Args:
            values: Values of the model.
        """
        for value in values:
            had = get_meta(value, VALUES_KEY)
            if had != ():
                value.meta[VALUES_KEY] = ()
                self._log.record(set_meta, value, VALUES_KEY, had)

    def _settle_constant(self, graph: ir.Graph, old: ir.Value, new: ir.Value, before: ir.Node) -> ir.Value:
        """Place a constant under the old value's name (an initializer renamed later would move to the end)."""
        assert new.const_value is not None
        name = self._set_aside(old)
        assert name is not None
        if not self.needs_constant_nodes(graph):
            set_name(new, name)
            self.add_initializer(graph, new)
            return new
        node = self._constant_node(new.const_value, before)
        set_name(node.outputs[0], name)
        self._inherit([node], [producer] if (producer := old.producer()) is not None else [])
        self._insert([node], before)
        return node.outputs[0]

    def _carry_metadata(self, old: ir.Value, new: ir.Value) -> None:
        annotation = semantics.QUANTIZATION_KEY
        for key in (annotation, facts.CLAIM):
            if get_meta(old, key) is not None and key not in new.meta:
                new.meta[key] = old.meta[key]
                self._log.record(set_meta, new, key, None)
        if not old.metadata_props and not old.doc_string:
            return
        self._log.record(_restore_value, new, dict(new.metadata_props), new.doc_string)
        for name, text in old.metadata_props.items():
            new.metadata_props.setdefault(name, text)
        new.doc_string = new.doc_string or old.doc_string

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
        operands = [value for user in scope.with_nested(node) for value in user.inputs if value is not None]
        settled: dict[ir.Value, ir.Value] = {}
        for old, new in replacements.items():
            result = new
            if result in nameless and not old.is_graph_output():
                self.rename(result, self._set_aside(old))
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

    # -- graphs below nodes -----------------------------------------------------------------------------------------

    def set_graph_inputs(self, graph: ir.Graph, values: Sequence[ir.Value]) -> None:
        """Leave a graph below a node some of its inputs; nothing uses the others.

        Raises:
            Conflict: The node is none of the standard's control flow, and may ask for the inputs.
        """
        _check_owned(graph)
        old = tuple(graph.inputs)
        _replace_list(graph.inputs, values)
        self._log.record(_replace_list, graph.inputs, old)

    def set_graph_outputs(self, graph: ir.Graph, values: Sequence[ir.Value]) -> None:
        """Leave a graph below a node some of its outputs, and remove what only the others needed.

        Raises:
            Conflict: The node is none of the standard's control flow, and may ask for the outputs.
        """
        _check_owned(graph)
        old = tuple(graph.outputs)
        _replace_list(graph.outputs, values)
        self._log.record(_replace_list, graph.outputs, old)
        self.sweep([producer for value in old if (producer := value.producer()) is not None])

    def inline(self, graph: ir.Graph, before: ir.Node) -> tuple[list[ir.Node], list[ir.Value]]:
        """Move what a graph below a node holds in front of the node.

        Args:
            graph: The graph; it is empty afterwards. Nothing uses its inputs any more.
            before: The node that holds it, in the graph that gets its nodes and initializers.

        Returns:
            The moved nodes, and the values that the graph returned.
        """
        results = list(graph.outputs)
        known = [(result, shape) for result in results if (shape := facts.shape_of(result)) is not result.shape]
        self.clear_outputs(graph)
        for result, shape in known:  # what the graph declared is no interface any more
            self.set_type(result, result.type, shape)
        adopted = {value: self.adopt_initializer(value, before) for value in tuple(initializers_of(graph).values())}
        results = [adopted.get(result, result) for result in results]
        moved = list(graph)
        for inner in moved:
            self.move_before(inner, before)
            for value in inner.outputs:
                if value.name:  # elsewhere the same names may be used
                    self.rename(value, self.fresh_name(value.name))
        return moved, results

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
        self._log.take(source.initializers, value.name)
        if self.needs_constant_nodes(target):
            node = self._constant_node(value.const_value, before)
            self._inherit([node], [use.node for use in value.uses()])
            self._insert([node], before)
            self.replace_uses(value, node.outputs[0])
            return node.outputs[0]
        self.rename(value, self.fresh_name(value.name))
        self._log.put(target.initializers, value.name, value)
        return value

    # -- what edits leave behind ------------------------------------------------------------------------------------

    def sweep(self, nodes: Iterable[ir.Node], token: CancellationToken = NEVER) -> None:
        """Remove those of the nodes whose results are not needed, and what only they needed.

        Args:
            nodes: Candidates; nodes that are in no graph, or needed, or not pure are left alone.
            token: Cancellation token; a caller that is stopped rolls back what has been done.
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
            for user in scope.with_nested(node):
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

    def drop_freed_initializers(self, token: CancellationToken = NEVER) -> None:
        """Remove the initializers that edits have left without any use.

        Args:
            token: Cancellation token; a caller that is stopped rolls back what has been done, and calls again.
        """
        by_graph: dict[ir.Graph, list[ir.Value]] = {}
        for value in token.checked(self._freed_initializers):
            if value.graph is not None and not use_count(value) and not value.is_graph_output():
                by_graph.setdefault(value.graph, []).append(value)
        for graph, values in by_graph.items():
            self.remove_initializers(graph, values, token)
        self._freed_initializers.clear()

    def reinfer(self, infer: Callable[[ir.Node], None], token: CancellationToken = NEVER) -> bool:
        """Infer again the nodes of which edits have changed the operands, and their users as far as results change.

        Args:
            infer: Infers a node that has been inferred before.
            token: Cancellation token; values that have not been inferred again by then stay as they are.

        Returns:
            Whether more, or something else, is known of any value; the users of such values are touched.
        """
        return self._reinference.run(infer, token)

    def needs_order(self, graph: ir.Graph) -> None:
        """Say that new nodes of a graph may stand before what they use (see `restore_order`)."""
        self._unsorted.add(graph)

    def restore_order(self, token: CancellationToken = NEVER) -> None:
        """Sort the graphs in which a node may stand before what it uses.

        Args:
            token: Cancellation token; a caller that is stopped rolls back what has been done, and calls again.
        """
        for graph in self._unsorted:
            if is_sorted(graph, token):
                continue
            for at, nodes in in_order(graph, token).items():
                old = list(at)
                if old != nodes:
                    self._log.record(at.extend, old)
                    for some in token.batched(nodes):
                        at.extend(some)
        self._unsorted.clear()


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


def _better_shape(new: ir.Shape | None, old: ir.Shape | None) -> ir.Shape | None:
    """The more specific shape: a known dimension beats an unknown one.

    It does not beat a symbol that inference has invented: inference of the saved file would invent it again, and other
    shapes may have it too.

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


def _taken_off(pending: list[ir.Node]) -> Iterator[ir.Node]:
    """The nodes in a list, and those that are added meanwhile, last in, first out."""
    while pending:
        yield pending.pop()


def _restore_value(value: ir.Value, metadata: dict[str, str], doc_string: str | None) -> None:
    value.metadata_props.clear()
    value.metadata_props.update(metadata)
    value.doc_string = doc_string


def _replace_list(values: MutableSequence[ir.Value], by: Sequence[ir.Value]) -> None:
    values.clear()
    values.extend(by)


__all__ = [
    "Conflict",
    "Editor",
    "TooLarge",
    "constant",
    "detach_orphans",
    "discard",
    "new_nodes",
]
