"""A guard of probabilities against NaNs is for rows in which a mask leaves nothing: the mask knows these rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    array_of,
    before,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    is_used_once,
    keeps_rank,
    need,
    opset,
    producer,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.patterns.quantization import is_dequantizer
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule

MOVES = RESHAPING | {"Expand", "Transpose", "Identity"}
_BITS = 16
_LARGEST = 1e20
"""Integers of so many bits by no larger scales stay finite, and so do sums with all floats but infinities."""

_DEEPEST = 7


class NanGuardElimination(CpuRule[Match]):
    """``Where(IsNaN(p), 0, p)`` → ``p``, where p is dequantized, or a Softmax of what is.

    With ``p = Softmax(x + mask)``, a dequantized x and a mask of finite numbers and -inf: ``p · keep``, where keep is 0
    for rows in which the mask is -inf throughout, else 1, and p is taken without a mask in these rows.
    """

    needs = ("IsNaN",)
    roots = ("Where",)  # from level 3 on: fused attention knows the guard
    opsets = (13, NEWEST_OPSET)  # before, all axes from the given one on were normalized together
    lookback = 4

    def match(self, root: ir.Node) -> Match:
        """A guard of what cannot be NaN, or only where a mask leaves nothing."""
        condition, fill, guarded = inputs(root, 3)
        test = producer(condition, "IsNaN")
        need(test.inputs[0] is guarded, "the guard tests another value", condition)
        need(is_constant(fill) and is_scalar(fill, 0.0) and not np.signbit(array_of(fill)).any(), "no 0", fill)
        need(keeps_rank(fill, guarded), "the guard raises the rank", fill)
        nodes = (test, root) if is_used_once(condition) else (root,)
        if _is_finite(guarded):
            return Match(nodes, lambda: guarded)
        softmax = producer(guarded, "Softmax")
        (x,) = inputs(softmax, 1)
        if _is_finite(x):
            return Match(nodes, lambda: guarded)
        need(ops.Softmax(softmax).is_last, "the Softmax is over other axes", softmax)
        need(use_count(guarded) == 2 and not guarded.is_graph_output(), "the probabilities are used elsewhere", guarded)
        addition = producer(x, "Add", alone="the scores are used elsewhere")
        scores, mask = _masked(addition)
        need(_is_finite(scores), "the scores may be infinite or NaN", scores)
        return Match((addition, softmax, *nodes), lambda: _without_empty_rows(addition, mask, opset(softmax)))


def _without_empty_rows(addition: ir.Node, mask: ir.Value, version: int) -> ir.Node:
    """Build the mask without the rows that leave nothing, and the product with 0 for them."""
    lowest, zero, one = (constant(np.array(number, np.float32)) for number in (-np.inf, 0, 1))
    most = ops.node_along("ReduceMax", mask, [-1], version).outputs[0]
    empty = ir.node("Equal", [most, lowest]).outputs[0]
    keep = ir.node("Where", [empty, zero, one]).outputs[0]
    filled = ir.node("Where", [empty, zero, mask]).outputs[0]
    x = ir.node("Add", [filled if value is mask else value for value in addition.inputs])
    return ir.node("Mul", [ir.node("Softmax", x.outputs, {"axis": -1}).outputs[0], keep])


def _masked(addition: ir.Node) -> tuple[ir.Value, ir.Value]:
    """The scores and the mask that an Add adds up.

    Raises:
        Refusal: If no operand is a mask of finite numbers and -inf.
    """
    a, b = inputs(addition, 2)
    for scores, mask in ((a, b), (b, a)):
        if _is_mask(mask):
            return scores, mask
    raise Refusal("no mask of finite numbers and -inf is added", addition)


def _is_mask(value: ir.Value) -> bool:
    """Whether all elements come from two constants, of finite numbers and -inf."""
    node = _source(value)
    if not is_op(node, "Where") or not all(map(is_constant, node.inputs[1:])):
        return False
    return all(bool((np.isfinite(content) | np.isneginf(content)).all()) for content in map(array_of, node.inputs[1:]))


def _is_finite(value: ir.Value) -> bool:
    """Whether all elements are dequantized from integers, by scales that let none overflow, nor a sum with another."""
    node = _source(value)
    if node is None or not is_dequantizer(node) or value.dtype != FLOAT:
        return False
    integers, scale = inputs(node, 2)
    if not dtype(integers).is_integer() or dtype(integers).bitwidth > _BITS or not is_constant(scale):
        return False
    return bool((np.abs(array_of(scale)) <= _LARGEST).all())


def _source(value: ir.Value) -> ir.Node | None:
    """The node whose elements a value has, perhaps in another order or shape, or several times."""
    return before(value, *MOVES, most=_DEEPEST).producer()
