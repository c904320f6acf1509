"""Guards that set NaNs among the probabilities to 0: where they do no more than a kernel does."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt.graph.match import Refusal, attribute, is_constant, is_op, is_used, need, only_user, users

_KEEPS_NAN = frozenset(
    {
        "Add",
        "Cast",
        "Concat",
        "DequantizeLinear",
        "Div",
        "DynamicQuantizeLinear",
        "Expand",
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
    {"DynamicQuantizeMatMul", "Gemm", "MatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"}
)
_DOMAINS = frozenset({"", "com.microsoft"})  # RotaryEmbedding is an op of both
_MAX_VALUES = 64
_MAX_STEPS = 8


def check_nothing_else_is_guarded(operands: Sequence[ir.Value], result: ir.Value) -> None:
    """Refuse a guard that would hide a NaN of the queries or of the keys which is not seen elsewhere as well.

    A row of probabilities is NaN where all its keys are masked by -inf, which gives 0 under the guard as by the kernel;
    or where a query or a key is NaN. Then all values at that position are NaN too if all three are computed from one
    value, the values by a matrix product, which spreads a NaN over all heads: the product with the probabilities, where
    0 · NaN is NaN, is NaN with the guard and without it. Of a past, which is an earlier call's keys and values, the
    same is assumed: they came from one value. Queries that come from elsewhere, as in cross attention, may hide a NaN
    if what they are computed from is added to the result and normalized with it, so that the whole row is NaN anyway.

    So it is with numbers that take the place of masked scores, which may be NaN.

    Args:
        operands: The queries, the new keys and the new values.
        result: What the block gives.

    Raises:
        Refusal: If neither is so.
    """
    queries, keys, values = operands
    projected = (source for product in _sources(values) for source in _projected(product))
    behind = set().union(*map(_sources, projected))
    need(bool(_sources(keys) & behind), "the guard would hide a NaN that the values do not have", keys)
    own = _sources(queries)
    if not own & _sources(keys) & behind:
        need(_is_normalized_with(result, own), "the guard would hide a NaN of the queries", queries)


def _is_normalized_with(result: ir.Value, sources: set[ir.Value]) -> bool:
    """Whether a value is used only in rows that are normalized together with one of some values."""
    at = result
    for _ in range(_MAX_STEPS):
        try:
            node = only_user(at)
        except Refusal:
            return False
        other = next((value for value in node.inputs[:2] if value is not at and value in sources), None)
        if node.domain == "com.microsoft" and node.op_type == "SkipLayerNormalization":
            return other is not None and not any(is_used(value) for value in node.outputs[1:])
        if node.domain not in _DOMAINS or node.op_type not in _KEEPS_NAN:
            return False
        at = node.outputs[0]
        if node.op_type == "Add" and other is not None:
            return bool(users(at)) and not at.is_graph_output() and all(map(_is_normalization, users(at)))
    return False


def _is_normalization(node: ir.Node) -> bool:
    return is_op(node, "LayerNormalization") and attribute(node, "axis", -1) == -1 and len(node.outputs) == 1


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
        if node is not None and node.domain in _DOMAINS and node.op_type in _KEEPS_NAN:
            pending.extend(operand for operand in node.inputs if operand is not None)
    return seen


def _projected(value: ir.Value) -> list[ir.Value]:
    """What a value is the product of, and constant weights."""
    node = value.producer()
    if node is None or node.domain not in _DOMAINS or node.op_type not in _PRODUCTS:
        return []
    first = node.inputs[0]
    return [] if first is None or is_constant(first) else [first]


__all__ = ["check_nothing_else_is_guarded"]
