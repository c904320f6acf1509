"""Elementwise ops broadcast their operands: an Expand before them repeats elements for nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.coordinates import difference, is_never_negative, is_never_positive, linear
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    same_dim,
    shape_of,
    splat,
    users,
)
from ortopt.graph.order import after_what_they_read
from ortopt.graph.symbolic import same_shape
from ortopt.graph.walk import Question, walk
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import BROADCASTING, NEUTRAL, UNARY

COMPARISONS = {"GreaterOrEqual": (is_never_negative, True), "LessOrEqual": (is_never_positive, True)}
MAX_NODES = 512
"""How many elementwise nodes below may become smaller: a mask is added in each layer."""

Shapes = dict[ir.Value, tuple[Dim, ...]]


class BroadcastExpandElimination(RewriteRule[Match]):
    """``f(x, Expand(y))`` → ``f(x, y)`` where f broadcasts, through further elementwise ops.

    A ConstantOfShape expands one number, and an Unsqueeze may add nothing but leading axes. An And with an operand that
    is always true (``Range(0, n, 1) >= 0``, as in the masks of transformer exports), or an Or with one that is always
    false, may only expand its other operand.
    """

    after = ("expand_elimination", "constant_folding")
    roots = ("And", "ConstantOfShape", "Expand", "Or", "Unsqueeze")
    opsets = (8, NEWEST_OPSET)  # the first with Expand; before 7, an attribute said how operands broadcast
    lookback = 6
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Only elementwise users, and each path ends in an op whose result has the same shape without the expansion."""
        need(bool(users(root.outputs[0])), "nobody uses it", root)
        narrow, shape = _narrow(root)
        wide = dims(root.outputs[0])
        if isinstance(narrow, ir.Value) and same_shape(shape, wide):
            return Match((root,), lambda: narrow)
        shapes: Shapes = {root.outputs[0]: shape}
        touched: dict[ir.Node, bool] = {}
        pending = [root.outputs[0]]
        while pending:
            value = pending.pop()
            need(not value.is_graph_output(), "the expanded value is a graph output", value)
            for user in users(value):
                _check(user, root)
                result = user.outputs[0]
                before, after = _broadcast(user, {}), _broadcast(user, shapes)
                smaller = not same_shape(before, after)
                touched[user] = smaller
                need(len(touched) <= MAX_NODES, "too many nodes use it", root)
                if smaller and shapes.get(result) != after:
                    shapes[result] = after
                    pending.append(result)
        ends = tuple(node.outputs[0] for node, smaller in touched.items() if not smaller)
        return Match((root, *touched), lambda: _anew(root, touched, narrow, ends), ends)


def _anew(
    root: ir.Node, members: Collection[ir.Node], narrow: ir.Value | np.ndarray, ends: Sequence[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Build the nodes below anew, on smaller operands."""
    new = {root.outputs[0]: narrow if isinstance(narrow, ir.Value) else constant(narrow)}
    lasts = [node for value in ends if (node := value.producer()) is not None]
    for node in after_what_they_read(lasts, members):
        inputs = [None if operand is None else new.get(operand, operand) for operand in node.inputs]
        new[node.outputs[0]] = ops.copied(node, inputs).outputs[0]
    return {value: new[value] for value in ends}


def _narrow(root: ir.Node) -> tuple[ir.Value | np.ndarray, tuple[Dim, ...]]:
    """The value that a node expands, and its dimensions."""
    if is_op(root, "ConstantOfShape"):
        return splat(root.outputs[0]), ()
    if is_op(root, "Expand"):
        (x,) = inputs(root, 1)
        return x, dims(x)
    if is_op(root, "Unsqueeze"):
        x = inputs(root, len(root.inputs))[0]
        added = ops.Unsqueeze(root).axes
        need(added == tuple(range(len(added))), "it adds other axes than leading ones", root)
        return x, dims(x)
    a, b = inputs(root, 2)
    neutral = bool(NEUTRAL[root.op_type])
    for x, other in ((a, b), (b, a)):
        if walk(partial(_is_always, neutral), other, unknown=False):
            return x, dims(x)
    raise Refusal(f"no operand is always {str(neutral).lower()}", root)


def _is_always(expected: bool, value: ir.Value) -> Question[ir.Value, bool]:
    """Whether all elements are provably true, or false."""
    if is_constant(value):
        content = array_of(value)
        return bool(np.all(content == expected))
    node = value.producer()
    if node is None or node.domain != "":
        return False
    if node.op_type == "Cast":
        (x,) = inputs(node, 1)
        return is_op(x.producer(), "ConstantOfShape") and bool(splat(x) != 0) is expected
    if node.op_type in ("And", "Or"):
        for operand in node.inputs:
            if operand is None or not (yield operand):
                return False
        return True
    if node.op_type in ("Expand", "Unsqueeze", "Reshape", "Identity"):
        (x,) = inputs(node, 1)
        return (yield x)
    shape = shape_of(value)
    if node.op_type not in COMPARISONS or shape is None:
        return False
    holds, answer = COMPARISONS[node.op_type]
    a, b = (linear(operand) for operand in node.inputs)
    gap = None if a is None or b is None else difference(a, b, shape)
    return answer is expected and gap is not None and holds(gap)


def _check(user: ir.Node, root: ir.Node) -> None:
    need(user.graph is root.graph, "a subgraph uses it", user)
    known = user.domain == "" and (user.op_type in UNARY or user.op_type in BROADCASTING)
    need(known, f"{user.op_type} does not treat each element alike", user)


def _broadcast(node: ir.Node, shapes: Shapes) -> tuple[Dim, ...]:
    """The dimensions of the result of an elementwise node."""
    operands = [shapes[value] if value in shapes else dims(value) for value in node.inputs if value is not None]
    if node.op_type in UNARY:
        return operands[0]
    most = max(map(len, operands))
    result: list[Dim] = []
    for axis in range(-most, 0):
        sizes: Sequence[Dim] = [own[axis] for own in operands if len(own) >= -axis]
        larger = [dim for dim in sizes if not same_dim(dim, 1)]
        agree = all(same_dim(dim, larger[0]) for dim in larger)
        need(agree, "it is not known what the operands broadcast to", node)
        result.append(larger[0] if larger else 1)
    return tuple(result)
