"""Clusters become functions: each set of nodes moves into one, and a call stands where they stood."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortopt.analysis import kernels
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import facts, scope
from ortopt.graph.constants import FLOATS
from ortopt.graph.edit import Editor, constant
from ortopt.graph.match import is_op
from ortopt.graph.names import unused
from ortopt.graph.provenance import origins_of, stands_for
from ortopt.onnx_ir_internals import use_count
from ortopt.partition import groups
from ortopt.partition.groups import Group
from ortopt.partition.settings import SMALL_CONSTANT_BYTES
from ortopt.semantics import GROUP_DOMAIN, constant_tensor
from ortopt.semantics.opset_changes import CONSTANTS_OF_ANY_TYPE_FROM

_CONTRIB_NORMALIZATIONS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Ops that ONNX Runtime adds to ai.onnx, where it does not define them."""

_NORMALIZED_AXES = ir.AttrInt64s("axes", (0, 2, 3))
"""The axes of a MeanVarianceNormalization that names none."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes that become one group.

    Attributes:
        provider: The execution provider that will run them.
        nodes: Nodes of one graph, in topological order.
    """

    provider: str
    nodes: tuple[ir.Node, ...]


class _Arguments:
    """What a set of nodes takes from the outside and gives to it, in the order in which the nodes need it.

    Attributes:
        runtime: Values that are known when the group runs.
        constants: Small constants, to be copied.
        weights: Large constants.
        outputs: Results that the outside needs.
    """

    def __init__(self, nodes: Sequence[ir.Node], token: CancellationToken) -> None:
        opset = scope.of(scope.graph_of(nodes[0])).opset_imports.get("", CONSTANTS_OF_ANY_TYPE_FROM)
        self._any_type = opset >= CONSTANTS_OF_ANY_TYPE_FROM
        self.runtime: dict[ir.Value, None] = {}
        self.constants: dict[ir.Value, ir.TensorProtocol] = {}
        self.weights: dict[ir.Value, None] = {}
        self.outputs: list[ir.Value] = []
        inside = set(nodes)
        own = {value for node in token.checked(nodes) for value in node.outputs}
        for node in token.checked(nodes):
            for value in (*node.inputs, *scope.captured(node)):
                if value is not None and value not in own:
                    self._take(value)
        graph = nodes[0].graph
        assert isinstance(graph, ir.Graph)
        for node in token.checked(nodes):
            for value in node.outputs:
                if value.is_graph_output() or any(
                    use.node not in inside and scope.ancestor_in(graph, use.node) not in inside for use in value.uses()
                ):
                    self.outputs.append(value)

    def _take(self, value: ir.Value) -> None:
        if value in self.runtime or value in self.constants or value in self.weights:
            return
        tensor = constant_tensor(value)
        if tensor is None:
            self.runtime[value] = None
        elif tensor.nbytes <= SMALL_CONSTANT_BYTES and (self._any_type or tensor.dtype in FLOATS):
            self.constants[value] = tensor
        else:
            self.weights[value] = None


def outline(edit: Editor, cluster: Cluster, name: str, token: CancellationToken = NEVER) -> ir.Node:
    """Move a cluster into a function of its own.

    The graph's order is the caller's to restore (`Editor.reorder`, or `Editor.needs_order`).

    Args:
        edit: The editor of the model.
        cluster: Its nodes are in no function.
        name: The function's name.
        token: Cancellation token; where it stops the run, the caller rolls back what has been done.

    Returns:
        The call.
    """
    nodes = cluster.nodes
    imports = scope.of(scope.graph_of(nodes[0])).opset_imports
    _settle_large_constants(edit, nodes, token)
    _spell_out_defaults(edit, token.checked(nodes))
    arguments = _Arguments(nodes, token)
    names = {value.name for node in token.checked(nodes) for value in node.outputs}
    inputs = {value: _twin(value, names) for value in token.checked((*arguments.runtime, *arguments.weights))}
    members = set(nodes)
    constants = {
        value: stands_for(_constant(value, tensor, names), *(use.node for use in value.uses() if use.node in members))
        for value, tensor in token.checked(arguments.constants.items())
    }
    renamed = inputs | {value: node.outputs[0] for value, node in constants.items()}
    needed_imports = _imports(token.checked(nodes), imports)
    body = ir.Graph(list(inputs.values()), [], nodes=(), opset_imports=needed_imports, name=name)
    function = ir.Function(GROUP_DOMAIN, name, graph=body, attributes=())
    origin = dict.fromkeys(origin for node in token.checked(nodes) for origin in origins_of(node))
    for batch in token.batched(constants.values()):
        body.extend(batch)
    function.metadata_props.update(groups.metadata(cluster.provider, len(arguments.weights), tuple(origin)))
    operands = [*arguments.runtime, *arguments.weights]
    call = ir.Node(GROUP_DOMAIN, name, operands, num_outputs=len(arguments.outputs))
    edit.set_ir_version(max(edit.model.ir_version, groups.IR_VERSION))
    edit.set_opset(imports, GROUP_DOMAIN, groups.OPSET)
    producers = [producer for value in token.checked(renamed) if (producer := value.producer()) is not None]
    edit.outline(nodes, function, call, renamed, arguments.outputs, token)
    edit.sweep((node for node in producers if node.op_type == "Constant"), token)
    return call


def _needed(group: Group) -> tuple[list[int], list[int]]:
    """The indices of the inputs that a group uses, and of the outputs that somebody uses."""
    taken = [place for place, value in enumerate(group.function.inputs) if use_count(value)]
    returned = [place for place, value in enumerate(group.call.outputs) if use_count(value) or value.is_graph_output()]
    return taken, returned


def needs_tidying(group: Group) -> bool:
    """Whether a group takes a value twice, takes what it does not need, or gives what nobody needs."""
    taken, returned = _needed(group)
    call = group.call
    return (
        len(set(call.inputs)) < len(call.inputs) or len(taken) < len(call.inputs) or len(returned) < len(call.outputs)
    )


def tidy(edit: Editor, group: Group) -> ir.Node | None:
    """Let a group take each value once, only what it needs, and give only what somebody needs.

    Args:
        edit: The editor of the model.
        group: A group of the model.

    Returns:
        The new call; None where nobody needs anything of the group, and it has gone.
    """
    function, call = group.function, group.call
    seen: dict[ir.Value, ir.Value] = {}
    for outer, inner in zip(call.inputs, function.inputs, strict=True):
        if outer is not None and seen.setdefault(outer, inner) is not inner:
            edit.replace_uses(inner, seen[outer])
    taken, returned = _needed(group)
    if not returned:
        producers = [producer for value in call.inputs if value is not None and (producer := value.producer())]
        edit.remove(call)
        edit.remove_function(function)
        edit.sweep(producers)
        return None
    weights = sum(place >= len(call.inputs) - group.weights for place in taken)
    edit.keep_arguments(function, taken, returned)
    edit.set_metadata(function, groups.WEIGHTS_KEY, str(weights))
    fewer = ir.Node(call.domain, call.op_type, [call.inputs[place] for place in taken], (), num_outputs=len(returned))
    edit.replace(
        {call.outputs[place]: new for place, new in zip(returned, fewer.outputs, strict=True)},
        before=call,
        origin=[call],
    )
    if call.graph is not None:
        edit.remove(call)
    return fewer


def _settle_large_constants(edit: Editor, nodes: Iterable[ir.Node], token: CancellationToken) -> None:
    """Let the large Constant nodes that some nodes use be initializers: weights are."""
    used = {
        value: None
        for node in token.checked(nodes)
        for value in (*node.inputs, *scope.captured(node))
        if value is not None
    }
    for value in token.checked(used):
        producer = value.producer()
        if producer is None or producer.op_type != "Constant" or producer.domain:
            continue
        tensor = constant_tensor(value)
        if tensor is not None and tensor.nbytes > SMALL_CONSTANT_BYTES:
            edit.replace({value: constant(tensor)}, before=producer, origin=[producer])


def _spell_out_defaults(edit: Editor, nodes: Iterable[ir.Node]) -> None:
    """Say attributes that ONNX Runtime 1.31 does not do without in a function.

    It crashes without the stash_type of its own normalizations, and does not load without the axes of a
    MeanVarianceNormalization: these are constants of what it expands to.
    """
    for node in nodes:
        for member in scope.with_nested(node):
            if is_op(member, "MeanVarianceNormalization") and _NORMALIZED_AXES.name not in member.attributes:
                edit.set_attribute(member, _NORMALIZED_AXES)
            if member.domain or member.op_type not in _CONTRIB_NORMALIZATIONS or "stash_type" in member.attributes:
                continue
            version = scope.of(scope.graph_of(member)).opset_imports.get("", 1)
            if not kernels.is_official("", member.op_type, version):
                edit.set_attribute(member, ir.AttrInt64("stash_type", int(ir.DataType.FLOAT)))


def _twin(value: ir.Value, names: set[str | None]) -> ir.Value:
    """What an outer value is called in a function, and what is known of it."""
    twin = ir.Value(name=unused(value.name or "value", names), type=value.type, shape=facts.shape_of(value))
    known = facts.all_contents(value) if facts.CONTENTS in value.meta else None
    facts.set_contents(twin, known, facts.sizes_of(value), known or ())
    return twin


def _constant(value: ir.Value, tensor: ir.TensorProtocol, names: set[str | None]) -> ir.Node:
    """A Constant node of a function that holds what an outer constant does."""
    # Not ir.node(): whether the tensor is one, of which protocol, costs it 0.1 ms.
    content = [ir.Attr("value", ir.AttributeType.TENSOR, tensor)]
    node = ir.Node("", "Constant", [], content)
    node.outputs[0].name = unused(value.name or "value", names)
    node.outputs[0].const_value = tensor
    node.outputs[0].type, node.outputs[0].shape = value.type, facts.shape_of(value)
    return node


def _imports(nodes: Iterable[ir.Node], imports: dict[str, int]) -> dict[str, int]:
    used = {"", *(inner.domain for node in nodes for inner in scope.with_nested(node))}
    return {domain: imports[domain] for domain in imports if domain in used}
