"""From a decoder to a model in which past and present are one buffer, with its weights where they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import onnx
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.analysis.dimensions import override
from ortopt.graph import symbolic
from ortopt.runtime.decoding.cache_pairs import ATTENTION, CachePair, find_pairs, source
from ortopt.runtime.decoding.shared_buffers import BufferSharing, SharedModel, Tokens
from ortopt.runtime.execution.weights import Placed, place
from ortopt.serialization.load import load


def share_cache(model: ir.Model, wanted: Mapping[str, str] | None) -> tuple[SharedModel, Placed]:
    """Let past and present of a decoder be one buffer.

    Args:
        model: The decoder; it is changed.
        wanted: The presents by their pasts' names; None for all that there are.

    Returns:
        What there is to know about the model, and the model as ONNX Runtime takes it.

    Raises:
        UsageError: It cannot be done; the message has the reasons.
    """
    without_guards(model)
    shapes.infer_model(model)
    pairs = find_pairs(model, wanted)
    shared = BufferSharing(model, pairs, _tokens(model, pairs)).apply()
    initializers = model.graph.initializers
    inputs = {value.name for value in model.graph.inputs}
    weights = {name: value.const_value for name, value in initializers.items() if value.const_value is not None}
    for name in weights:
        if name not in inputs:
            del initializers[name]
    return shared, place(_proto(model), {name: weights[name] for name in weights if name not in initializers})


def _tokens(model: ir.Model, pairs: Sequence[CachePair]) -> list[Tokens]:
    """How many rows a call adds to each pair.

    What a size is may depend on whether a batch is empty: where that hides it, it is asked for batches of one. It need
    not be proven: ONNX Runtime refuses rows that are not as many.
    """
    tokens = [_added(pair) for pair in pairs]
    if all(len(each) and not any(map(symbolic.is_invented, each)) for each in tokens):
        return tokens
    batches = {
        dim.value: 1
        for pair in pairs
        for axis, dim in enumerate(pair.past.shape or ())
        if axis != pair.axis and isinstance(dim, ir.SymbolicDim) and dim.value is not None
    }
    if not batches:
        return tokens
    single = load(model, checked=False)  # without guards, as the model
    override(single, batches)
    shapes.infer_model(single)
    return [_added(pair) for pair in find_pairs(single, {p.past.name or "": p.present.name or "" for p in pairs})]


def _added(pair: CachePair) -> Tokens:
    """How many rows a call adds to a pair, as its new operand's shape says."""
    is_value = pair.node.op_type != "Concat" and source(pair.present).index() == 2
    new = pair.node.inputs[2 if is_value else 1]
    if new is None or new.shape is None or len(new.shape) <= 1:
        return ()
    split = pair.node.op_type != "Concat" and len(new.shape) == 3
    return symbolic.broadcast_from(new.shape[1 if split else pair.axis])


def _proto(model: ir.Model) -> onnx.ModelProto:
    proto: onnx.ModelProto = ir.to_proto(model)
    del proto.graph.value_info[:]  # what is known of values between is ONNX Runtime's to find
    return proto


_THEN: Final = "then_branch"
_ELSE: Final = "else_branch"


def without_guards(model: ir.Model) -> None:
    """Put the attention ops of such Ifs in place of them, as `attention_fusion` has made them.

    Args:
        model: A decoder; it is changed. What the ops fail on, a call of nothing, a decode loop refuses itself.
    """
    for node in list(model.graph):
        if node.op_type == "If" and not node.domain and _asks_for_elements(node.inputs[0]) and _has_attention(node):
            _choose(node, model.graph)


def _asks_for_elements(condition: ir.Value | None) -> bool:
    """Whether a condition is that some value has elements."""
    cast = None if condition is None else source(condition).producer()
    if cast is None or cast.op_type != "Cast" or cast.domain or cast.inputs[0] is None:
        return False
    size = source(cast.inputs[0]).producer()
    return size is not None and size.op_type == "Size" and not size.domain


def _has_attention(node: ir.Node) -> bool:
    """Whether the first branch is attention ops alone."""
    branch = node.attributes.get_graph(_THEN)
    return branch is not None and len(branch) > 0 and all((one.domain, one.op_type) in ATTENTION for one in branch)


def _choose(node: ir.Node, graph: ir.Graph) -> None:
    """Put the nodes of the first branch in place of an If."""
    branch = node.attributes[_THEN].as_graph()
    results = list(branch.outputs)
    branch.outputs.clear()
    for inner in list(branch):
        branch.remove(inner)
        graph.insert_before(node, inner)
    for old, new in zip(node.outputs, results, strict=True):
        if old.is_graph_output():
            name, old.name = old.name, None
            new.name, new.shape, new.type = name, old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    for inner in node.attributes[_ELSE].as_graph():
        for position in range(len(inner.inputs)):
            inner.replace_input_with(position, None)  # it is no reader of the past any more
