"""An attention op in an If that asks whether a call has elements: a step of a decode loop always has."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.runtime.decoding.cache_pairs import ATTENTION, source

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
        for place in range(len(inner.inputs)):
            inner.replace_input_with(place, None)  # it is no reader of the past any more


__all__ = ["without_guards"]
