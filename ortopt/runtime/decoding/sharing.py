"""From a decoder to a model in which past and present are one buffer, with its weights where they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.analysis.dimensions import override
from ortopt.graph import symbolic
from ortopt.runtime.decoding.cache_pairs import CachePair, find_pairs, source
from ortopt.runtime.decoding.guards import without_guards
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


__all__ = ["share_cache"]
