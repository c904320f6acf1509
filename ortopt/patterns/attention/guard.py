"""Guards that set NaNs among the probabilities to 0: where they do no more than a kernel does."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt.graph.match import is_constant, is_op, need

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
    | {"MatMulNBits", "Unsqueeze"}
)
"""Ops whose result has a NaN in each position, of a sequence, in which an operand that is not constant has one."""

_PRODUCTS = frozenset({"Gemm", "MatMul", "MatMulInteger", "MatMulNBits"})
_DOMAINS = frozenset({"", "com.microsoft"})  # RotaryEmbedding is an op of both
_MAX_VALUES = 64


def check_nothing_else_is_guarded(operands: Sequence[ir.Value]) -> None:
    """Refuse a guard that would hide a NaN of the queries or of the keys which the values do not have as well.

    A row of probabilities is NaN where all its keys are masked by -inf, which gives 0 under the guard as by the kernel;
    or where a query or a key is NaN. Then all values at that position are NaN too if all three are computed from one
    value, the values by a matrix product, which spreads a NaN over all heads: the product with the probabilities, where
    0 · NaN is NaN, is NaN with the guard and without it. Of a past, which is an earlier call's keys and values, the
    same is assumed: they came from one value.

    Args:
        operands: The queries, the new keys and the new values.

    Raises:
        Refusal: If they are not computed from one value.
    """
    queries, keys, values = operands
    projected = (source for product in _sources(values) for source in _projected(product))
    behind = set().union(*map(_sources, projected))
    common = _sources(queries) & _sources(keys) & behind
    need(bool(common), "the guard would hide a NaN that the values do not have", queries)


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
