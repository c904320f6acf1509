"""Guards that set NaNs among the probabilities to 0: where they do no more than a kernel does."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import Refusal, is_constant, is_op, is_used, need, only_user, users
from ortopt.semantics.domains import MICROSOFT

_KEEPS_NAN = frozenset(
    {
        "Add",
        "Cast",
        "Concat",
        "DequantizeLinear",
        "Div",
        "DynamicQuantizeLinear",
        "Expand",
        "FusedMatMul",
        "Gemm",
        "Identity",
        "MatMul",
    }
    | {"MatMulInteger", "Mul", "Neg", "Reshape", "RotaryEmbedding", "Slice"}
    | {"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "Split", "Squeeze", "Sub", "Transpose"}
    | {"DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulNBits", "SequenceAt", "SplitToSequence", "Unsqueeze"}
)
"""Ops whose result has a NaN in each position, of a sequence, in which an operand that is not constant has one."""

_PRODUCTS = frozenset(
    {
        *("DynamicQuantizeMatMul", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "MatMulIntegerToFloat"),
        "MatMulNBits",
    }
)
_CHOICES = ("Gather", "GatherND")
"""Those too if what they choose is constant: parts of a projection, as a Slice takes them."""

_NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_SKIPS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_DOMAINS = frozenset({"", MICROSOFT})  # RotaryEmbedding is an op of both
_MAX_VALUES = 64
_MAX_STEPS = 8
_MAX_SUMS = 512


def check_nothing_else_is_guarded(operands: Sequence[ir.Value], result: ir.Value) -> None:
    """Refuse a guard that would hide a NaN of the queries or of the keys which is not seen elsewhere as well.

    A row of probabilities is NaN where all its keys are masked by -inf, which gives 0 under the guard as by the kernel;
    or where a query or a key is NaN. Then all values at that position are NaN too if all three are computed from one
    value, the values by a matrix product, which spreads a NaN over all heads: the product with the probabilities, where
    0 · NaN is NaN, is NaN with the guard and without it. Of a past, which is an earlier call's keys and values, nothing
    says so: what is made of a block with a past is the same for finite numbers only. Queries that come from elsewhere,
    as in cross attention, may hide a NaN if what they are computed from is added to the result and normalized with it,
    so that the whole row is NaN anyway.

    So it is with numbers that take the place of masked scores, which may be NaN.

    Args:
        operands: The queries, the new keys and the new values.
        result: What the block gives.

    Raises:
        Refusal: If neither is so.
    """
    queries, keys, values = operands
    shared, own = _sources(keys), _sources(queries)
    projected = dict.fromkeys(source for product in _sources(values) for source in _projected(product))
    is_seen = False
    for source in projected:
        seen = shared & _sources(source)
        if not own.isdisjoint(seen):
            return
        is_seen = is_seen or bool(seen)
    need(is_seen, "the guard would hide a NaN that the values do not have", keys)
    need(_is_normalized_with(result, own), "the guard would hide a NaN of the queries", queries)


def _is_normalized_with(result: ir.Value, sources: set[ir.Value]) -> bool:
    """Whether a value is added to one of some values, and the sum is used only where its rows are normalized."""
    at = result
    for _ in range(_MAX_STEPS):
        try:
            node = only_user(at)
        except Refusal:
            return False
        other = next((value for value in node.inputs[:2] if value is not at and value in sources), None)
        if is_op(node, *_SKIPS, domain=MICROSOFT):
            return other is not None and _normalizes(node, at) and all(map(_is_normalized, _sums(node)))
        if node.domain not in _DOMAINS or node.op_type not in _KEEPS_NAN:
            return False
        at = node.outputs[0]
        if node.op_type == "Add" and other is not None:
            return _is_normalized(at)
    return False


def _is_normalized(value: ir.Value) -> bool:
    """Whether a value is used only in rows that are normalized, alone or after other values were added to them."""
    pending, seen = [value], {value}
    while pending:
        at = pending.pop()
        if len(seen) > _MAX_SUMS or at.is_graph_output() or not users(at):
            return False
        for node in users(at):
            if not _normalizes(node, at):
                return False
            sums = [one for one in _sums(node) if one not in seen]
            seen.update(sums)
            pending.extend(sums)
    return True


def _normalizes(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node normalizes the rows of a value, or of a sum with it, or adds to it, and gives nothing else."""
    if is_op(node, *_SKIPS, domain=MICROSOFT):
        return value in node.inputs[:2] and not any(map(is_used, node.outputs[1:3]))
    if is_op(node, "Add"):
        return True
    whole = is_op(node, *_NORMALIZATIONS) and ops.OneAxis(node).is_last
    return whole and node.inputs[0] is value and len(node.outputs) == 1


def _sums(node: ir.Node) -> list[ir.Value]:
    """The sums that a node gives beside what it normalizes, as far as they are used."""
    if is_op(node, "Add"):
        return list(node.outputs)
    return [one for one in node.outputs[3:4] if is_used(one)]


def _sources(value: ir.Value) -> set[ir.Value]:
    """A value and those that it is computed from, as far as NaNs stay in their positions."""
    pending = [value]
    seen: set[ir.Value] = set()
    while pending and len(seen) < _MAX_VALUES:
        at = pending.pop()
        if at in seen or is_constant(at):
            continue
        seen.add(at)
        node = at.producer()
        if node is None:
            continue
        if is_op(node, *_SKIPS, domain=MICROSOFT):
            pending.extend(one for one in (*node.inputs[:2], *node.outputs[3:4]) if one is not None)
        elif _keeps_nan(node):
            pending.extend(operand for operand in node.inputs if operand is not None)
    return seen


def _keeps_nan(node: ir.Node) -> bool:
    if is_op(node, *_CHOICES):
        return node.inputs[1] is not None and is_constant(node.inputs[1])
    return node.domain in _DOMAINS and node.op_type in _KEEPS_NAN


def _projected(value: ir.Value) -> list[ir.Value]:
    """What a value is the product of, and constant weights."""
    node = value.producer()
    if node is None or node.domain not in _DOMAINS or node.op_type not in _PRODUCTS:
        return []
    first = node.inputs[0]
    return [] if first is None or is_constant(first) else [first]
