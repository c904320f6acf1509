"""A local function hides its nodes from every other pass; inlined, they are optimized with what is around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis import kernels
from ortopt.cancellation import CancellationToken
from ortopt.graph import scope
from ortopt.graph.edit import Editor, constant, discard
from ortopt.graph.facts import copy_facts
from ortopt.graph.match import Refusal, need, need_known
from ortopt.graph.names import set_name
from ortopt.semantics import GROUP_DOMAIN, constant_tensor, key
from ortopt.semantics.nodes import callers_first
from ortopt.transformer import Context, GraphTransformer

MAX_NODES = 500_000  # functions that call one another twice, and so on, would otherwise grow without bound
MIN_BUDGET = 100_000
BUDGET_IN_FUNCTION = 1_000
DEEPEST = 24
LONGEST_PREFIX = 160


class Extent(Struct, frozen=True):
    """The size of an inlined function: its nodes, and the depth of its nested graphs."""

    nodes: int
    depth: int


class FunctionInlining(GraphTransformer):
    """Call of a local function → the nodes of its body.

    Functions of the domain ``ortopt.group`` are never inlined, and with ``keep_functions`` no function is. A function
    is also kept if it uses an op for which its opset imports contradict those of the caller. Functions that are no
    longer called are removed.
    """

    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Inline the calls in the main graph and below it, then those in the functions that are left."""
        if graph is not context.model.graph or not context.model.functions:
            return False
        total = sum(len(at) for at in scope.graphs(context.model, context.cancellation))
        budget = max(MIN_BUDGET, MAX_NODES - total)
        inliner = Inliner(graph, context, budget)
        changed = inliner.inline_all()
        if changed:
            _drop_unreachable(context, inliner.inlined)
        budget = inliner.budget
        for function in tuple(context.model.functions.values()):
            inliner = Inliner(function.graph, context, min(budget, BUDGET_IN_FUNCTION))
            granted = inliner.budget
            changed |= inliner.inline_all()
            budget -= granted - inliner.budget
        return changed


class Frame(Struct, frozen=True):
    """A body that is being copied.

    Attributes:
        nodes: The nodes that are still to be copied.
        values: Value of the body to value of the caller.
        attributes: The values of the function's attributes at the call, with the defaults.
        prefix: The beginning of names of its values and nodes.
        call: The nested call that it replaces; None for the outermost body.
    """

    nodes: Iterator[ir.Node]
    values: dict[ir.Value, ir.Value | None]
    attributes: Mapping[str, ir.Attr] | None
    prefix: str
    call: ir.Node | None


class Inliner:
    """Inlines calls into one main graph or function.

    Args:
        graph: The main graph, or a function's.
        context: The pass's context.
        budget: How many nodes may come into the graph.

    Attributes:
        budget: How many may still come.
        inlined: The functions of which a call has been inlined, those called by inlined bodies too.
    """

    def __init__(self, graph: ir.Graph, context: Context, budget: int) -> None:
        self.context = context
        self.edit: Editor = context.edit
        self.functions = context.model.functions
        self.graph = graph
        self.budget = budget
        self.imports = scope.of(graph).opset_imports
        self.inlined: dict[ir.OperatorIdentifier, None] = {}
        self._extents: dict[ir.OperatorIdentifier, Extent] = {}
        self._shared: dict[ir.Value, ir.Value] = {}

    def inline_all(self) -> bool:
        """Inline every call in the graph and below it; whether there was one that could be."""
        functions = self.functions
        token = self.context.cancellation
        inside = (node for at in scope.below(self.graph, token) for node in token.checked(at))
        calls = [node for node in inside if node.op_identifier() in functions]
        if not calls:
            return False
        self._extents = _extents(self.graph, functions, token)
        done = [self.inline(call) for call in calls]
        return any(done)

    def inline(self, call: ir.Node) -> bool:
        """Replace a call by the body of its function, if that may be."""
        context = self.context
        try:
            self._may_inline(call, _depth(scope.graph_of(call)))
        except Refusal as refusal:
            context.refuse(call, refusal)
            return False
        budget, shared, inlined = self.budget, len(self._shared), len(self.inlined)
        nodes: list[ir.Node] = []
        if context.attempt((call,), partial(self._change, call, nodes)):
            return True
        discard(nodes)
        _shrink(self._shared, shared)
        _shrink(self.inlined, inlined)
        self.budget = budget
        return False

    def _change(self, call: ir.Node, nodes: list[ir.Node]) -> list[ir.Node]:
        """Put the body of its function in the place of a call; the nodes."""
        self.inlined[call.op_identifier()] = None
        self._import_domains(self.functions[call.op_identifier()])
        results = self._copy(call, nodes)
        self.edit.insert(nodes, call, [call], named=True)
        self._connect(call, results, nodes)
        return nodes

    # -- whether ----------------------------------------------------------------------------------------------------

    def _may_inline(self, call: ir.Node, depth: int) -> None:
        function = self.functions[call.op_identifier()]
        need(not self.context.options.keep_functions, "functions are kept", call)
        need(function.domain != GROUP_DOMAIN, "it is a fusion group", call)
        extent = self._extents[call.op_identifier()]
        need(extent.nodes <= self.budget, "inlining would multiply the nodes", call)
        need(depth + extent.depth <= DEEPEST, "inlining would nest graphs too deeply", call)
        need(len(call.inputs) <= len(function.inputs), "it has more inputs than the function", call)
        need(len(call.outputs) <= len(function.outputs), "it has more outputs than the function", call)
        for attribute in call.attributes.values():
            graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            need(attribute.type not in graphs, "a graph is passed as an attribute", call)
        for domain, op_types in _used(function, self.functions, self.context.cancellation).items():
            theirs, ours = function.opset_imports.get(domain), self.imports.get(domain)
            theirs = need_known(theirs, f"the function does not import {domain or 'ai.onnx'!r}", call)
            if ours is None or ours == theirs:
                continue
            for op_type in op_types:
                need(
                    kernels.is_defined_alike(domain, op_type, ours, theirs),
                    f"{op_type} differs between opset {theirs} of the function and opset {ours} of the caller",
                    call,
                )

    def _import_domains(self, function: ir.Function) -> None:
        for domain in _domains(function, self.context.cancellation):
            if domain not in self.imports:
                self.edit.set_opset(self.imports, domain, function.opset_imports[domain])

    # -- copying ----------------------------------------------------------------------------------------------------

    def _copy(self, call: ir.Node, nodes: list[ir.Node]) -> list[ir.Value | None]:
        """Copy the body behind a call, calls inside it expanded; what the call's outputs become."""
        frame = self._frame(call, {value: value for value in call.inputs if value is not None}, None, "", None)
        self._copy_frames(frame, nodes, _depth(scope.graph_of(call)))
        function = self.functions[call.op_identifier()]
        self.budget -= len(nodes)
        return [frame.values.get(value) for value in function.outputs[: len(call.outputs)]]

    def _frame(
        self,
        call: ir.Node,
        values: Mapping[ir.Value, ir.Value | None],
        attributes: Mapping[str, ir.Attr] | None,
        prefix: str,
        nested: ir.Node | None,
    ) -> Frame:
        """The body behind a call whose inputs and attributes are read in the caller's terms."""
        function = self.functions[call.op_identifier()]
        actual = [None if value is None else values.get(value, value) for value in call.inputs]
        actual += [None] * (len(function.inputs) - len(actual))
        passed = {name: item for name, item in function.attributes.items() if item.value is not None}
        for name, item in call.attributes.items():
            resolved = item if attributes is None else _resolved(item, attributes)
            if resolved is not None:
                passed[name] = resolved
        name = call.name or call.outputs[0].name or function.name if call.outputs else call.name or function.name
        longer = f"{prefix}/{name}" if prefix else name
        return Frame(
            iter(function.graph),
            dict(zip(function.inputs, actual, strict=True)),
            passed,
            longer if len(longer) <= LONGEST_PREFIX else prefix or longer[:LONGEST_PREFIX],
            nested,
        )

    def _copy_frames(self, outermost: Frame, nodes: list[ir.Node], depth: int) -> None:
        """Copy a sequence of nodes, and in their places the bodies of the functions that they call."""
        frames = [outermost]
        while frames:
            frame = frames[-1]
            node = next(frame.nodes, None)
            if node is None:
                frames.pop()
                if frame.call is not None:
                    function = self.functions[frame.call.op_identifier()]
                    outer = frames[-1].values
                    for value, result in zip(frame.call.outputs, function.outputs, strict=False):
                        outer[value] = frame.values.get(result)
                continue
            if node.op_identifier() in self.functions:
                try:
                    self._may_inline(node, depth)
                except Refusal as refusal:
                    self.context.refuse(node, refusal)
                else:
                    self._import_domains(self.functions[node.op_identifier()])
                    self.inlined[node.op_identifier()] = None
                    frames.append(self._frame(node, frame.values, frame.attributes, frame.prefix, node))
                    continue
            self._copy_node(node, frame, nodes, depth)

    def _copy_node(self, node: ir.Node, frame: Frame, nodes: list[ir.Node], depth: int) -> None:
        tensor = constant_tensor(node.outputs[0]) if node.op_type == "Constant" and node.domain == "" else None
        if tensor is not None and not self.edit.needs_constant_nodes(self.graph):
            frame.values[node.outputs[0]] = self._share(node.outputs[0], tensor, frame.prefix)
            return
        attributes = []
        for item in node.attributes.values():
            resolved = item if frame.attributes is None else _resolved(item, frame.attributes)
            if resolved is None:
                need(key(node) != ("", "Constant"), f"the call leaves out {item.ref_attr_name}", node)
                continue
            attributes.append(self._copy_attribute(resolved, frame, depth))
        copy = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else frame.values.get(value, value) for value in node.inputs],
            attributes,
            overload=node.overload,
            num_outputs=len(node.outputs),
            version=node.version,
            name=self.edit.fresh_name(f"{frame.prefix}/{node.name or node.op_type}"),
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
        )
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            self._describe(old, new, frame)
        nodes.append(copy)

    def _describe(self, old: ir.Value, new: ir.Value, frame: Frame) -> None:
        """Name a copied value, and give it the type, shape and metadata of the original."""
        if old.name:
            new.name = self.edit.fresh_name(f"{frame.prefix}/{old.name}")
        elif old.name == "":
            new.name = ""
        copy_facts(old, new)
        new.doc_string = old.doc_string
        new.metadata_props.update(old.metadata_props)
        frame.values[old] = new

    def _share(self, value: ir.Value, tensor: ir.TensorProtocol, prefix: str) -> ir.Value:
        """The initializer for a Constant of a body, one for all of its copies."""
        shared = self._shared.get(value)
        if shared is None:
            shared = constant(tensor)
            set_name(shared, self.edit.fresh_name(f"{prefix}/{value.name}"))
            self.edit.add_initializer(self.graph, shared)
            self._shared[value] = shared
        return shared

    def _copy_attribute(self, attribute: ir.Attr, frame: Frame, depth: int) -> ir.Attr:
        if attribute.is_ref():
            return attribute
        if attribute.type == ir.AttributeType.GRAPH:
            graph = self._copy_graph(attribute.as_graph(), frame, depth + 1)
            return ir.Attr(attribute.name, attribute.type, graph, attribute.doc_string)
        if attribute.type == ir.AttributeType.GRAPHS:
            graphs = [self._copy_graph(graph, frame, depth + 1) for graph in attribute.as_graphs()]
            return ir.Attr(attribute.name, attribute.type, graphs, attribute.doc_string)
        return attribute

    def _copy_graph(self, graph: ir.Graph, outer: Frame, depth: int) -> ir.Graph:
        values = dict(outer.values)
        inner = Frame(iter(graph), values, outer.attributes, outer.prefix, None)
        inputs = [ir.Value(name=None) for _ in graph.inputs]
        for old, new in zip(graph.inputs, inputs, strict=True):
            self._describe(old, new, inner)
        initializers = []
        for old in graph.initializers.values():
            if old in values:
                new_value = values[old]
                assert new_value is not None
                new_value.const_value = old.const_value
            else:
                new_value = ir.Value(name=None, const_value=old.const_value)
                self._describe(old, new_value, inner)
            initializers.append(new_value)
        nodes: list[ir.Node] = []
        self._copy_frames(inner, nodes, depth)
        own = {value for node in nodes for value in node.outputs} | {*inputs, *initializers}
        outputs = []
        for old in graph.outputs:
            result = values.get(old)
            need(result is not None, "an input left out is a result")
            if result not in own:
                copy = ir.node("Identity", [result], name=self.edit.fresh_name(f"{outer.prefix}/Identity"))
                copy.outputs[0].name = self.edit.fresh_name(f"{outer.prefix}/{old.name}")
                copy_facts(old, copy.outputs[0])
                nodes.append(copy)
                result = copy.outputs[0]
            outputs.append(result)
        return ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            doc_string=graph.doc_string,
            name=graph.name,
            metadata_props=dict(graph.metadata_props),
        )

    # -- connecting -------------------------------------------------------------------------------------------------

    def _connect(self, call: ir.Node, results: list[ir.Value | None], nodes: list[ir.Node]) -> None:
        """Replace the call's outputs by the results, and remove the call."""
        replacements: dict[ir.Value, ir.Value] = {}
        for old, result in zip(call.outputs, results, strict=True):
            if result is None:
                need(not old.uses() and not old.is_graph_output(), "an input left out is a result", call)
                continue
            replacements[old] = result
        self.edit.replace_and_remove(call, replacements, nodes)


def _shrink(grown: dict[Any, Any], length: int) -> None:
    """Remove the entries that a dictionary has got since it had this length."""
    while len(grown) > length:
        grown.popitem()


def _resolved(attribute: ir.Attr, attributes: Mapping[str, ir.Attr]) -> ir.Attr | None:
    """An attribute of a body in the caller's terms; None where the call leaves it out."""
    if not attribute.is_ref():
        return attribute
    name = attribute.ref_attr_name
    argument = attributes.get(name) if name is not None else None
    if argument is None:
        return None
    if argument.is_ref():
        assert argument.ref_attr_name is not None
        return ir.RefAttr(attribute.name, argument.ref_attr_name, argument.type, attribute.doc_string)
    return ir.Attr(attribute.name, argument.type, argument.value, attribute.doc_string)


def _depth(graph: ir.Graph) -> int:
    return sum(1 for _ in scope.around(graph))


def _used(
    function: ir.Function, functions: Mapping[ir.OperatorIdentifier, ir.Function], token: CancellationToken
) -> dict[str, dict[str, None]]:
    """The op types of each domain that a function's nodes are of, calls of local functions left out."""
    used: dict[str, dict[str, None]] = {}
    for graph in scope.below(function.graph, token):
        for node in token.checked(graph):
            if node.op_identifier() not in functions:
                used.setdefault(node.domain, {})[node.op_type] = None
    return used


def _domains(function: ir.Function, token: CancellationToken) -> dict[str, None]:
    return {node.domain: None for graph in scope.below(function.graph, token) for node in token.checked(graph)}


def _extents(
    graph: ir.Graph, functions: Mapping[ir.OperatorIdentifier, ir.Function], token: CancellationToken
) -> dict[ir.OperatorIdentifier, Extent]:
    """The sizes of the functions that a graph calls, inlined with all functions that they call."""
    called = scope.called_functions(graph, functions, token)
    extents: dict[ir.OperatorIdentifier, Extent] = {}
    for identifier in reversed(callers_first({identifier: functions[identifier] for identifier in called})):
        count, calls = _calls(functions[identifier], functions, token)
        nodes = count + sum(extents[callee].nodes for callee, _ in calls)
        deepest = max((depth + extents[callee].depth for callee, depth in calls), default=0)
        extents[identifier] = Extent(nodes, max(deepest, _height(functions[identifier].graph, token)))
    return extents


def _calls(
    function: ir.Function, functions: Mapping[ir.OperatorIdentifier, ir.Function], token: CancellationToken
) -> tuple[int, list[tuple[ir.OperatorIdentifier, int]]]:
    """The number of a function's nodes besides calls, and the functions that it calls, with the depths."""
    count, calls = 0, []
    for graph in scope.below(function.graph, token):
        own = [node.op_identifier() for node in token.checked(graph) if node.op_identifier() in functions]
        count += len(graph) - len(own)
        calls += [(identifier, _depth(graph)) for identifier in own]
    return count, calls


def _height(graph: ir.Graph, token: CancellationToken) -> int:
    return max(map(_depth, scope.below(graph, token)))


def _drop_unreachable(context: Context, candidates: Mapping[ir.OperatorIdentifier, None]) -> None:
    """Drop those functions that nothing calls any more, directly or indirectly."""
    called = scope.called_functions(context.model.graph, context.model.functions, context.cancellation)
    for identifier in candidates:
        if identifier not in called:
            context.edit.remove_function(context.model.functions[identifier])
