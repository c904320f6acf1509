"""Changes of a graph that let clusters grow, tried on the graph and kept only where they did.

- A Split that the host must do stands between a pointwise op and others of a cluster: ``Split(op(x, y))`` becomes
  ``op(Split(x), Split(y))``, part by part, so that the op joins them. Operands that the op broadcasts along the axis
  are not split.
- A Gemm or Conv that the host must do adds a bias, which others could do: the addition becomes a node of its own.

Whatever has not made a cluster larger is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import facts, symbolic
from ortopt.graph.edit import Conflict, Editor, constant
from ortopt.graph.match import Absent, Refusal, attribute, dims, is_op, need, opset, rank, tensor_of
from ortopt.onnx_ir_internals import use_count
from ortopt.partition.shape_only_outputs import Attempt
from ortopt.semantics.op_traits import ELEMENTWISE, UNARY_WITH_PARAMETERS

ClusterOf: TypeAlias = Mapping[ir.Node, int]
"""For each node of a cluster the cluster's number."""

POINTWISE = ELEMENTWISE - UNARY_WITH_PARAMETERS
"""Ops that treat each element of all operands alike; each has one result."""

BIASED = {"Gemm": 11, "Conv": 1, "ConvTranspose": 1}
"""Ops whose third operand is a bias that may be left out, from which opset on."""

ROOTS = ("Split", *BIASED)

_MAX_ROUNDS = 16


class Preparation(Struct, frozen=True):
    """A change that may let a cluster grow.

    Attributes:
        nodes: The nodes that change.
        apply: Makes the change; returns the nodes that shall join a cluster.
    """

    nodes: tuple[ir.Node, ...]
    apply: Callable[[Editor], list[ir.Node]]


def improve(
    edit: Editor, graph: ir.Graph, cut: Callable[[], ClusterOf], attempt: Attempt, token: CancellationToken = NEVER
) -> bool:
    """Make the changes that let clusters grow.

    Args:
        edit: The editor of the model.
        graph: The graph.
        cut: Cuts the graph as it is.
        attempt: Makes each change that stays.
        token: Cancellation token; where it stops the run, the caller rolls back what has been done.

    Returns:
        Whether anything changed.
    """
    changed = False
    useless: set[ir.Node] = set()
    for _ in range(_MAX_ROUNDS):
        clusters = cut()
        preparations = [change for change in _preparations(graph, clusters, token) if change.nodes[0] not in useless]
        if not preparations:
            break
        kept = _which_gain(edit, preparations, cut, token)
        useless.update(change.nodes[0] for change in preparations)
        done = [attempt(change.nodes, partial(change.apply, edit)) for change in token.checked(kept)]
        if not any(done):
            break
        edit.restore_order(token)
        changed = True
    return changed


def _which_gain(
    edit: Editor, preparations: Sequence[Preparation], cut: Callable[[], ClusterOf], token: CancellationToken
) -> list[Preparation]:
    """Try all changes at once, see what joined a cluster, and take them back."""
    start, clock = edit.version, edit.clock
    tried: list[tuple[Preparation, list[ir.Node]]] = []
    for change in token.checked(preparations):
        try:
            tried.append((change, change.apply(edit)))
        except Conflict:
            continue
    edit.restore_order(token)
    clusters = cut()
    gained = [change for change, nodes in token.checked(tried) if any(_has_joined(node, clusters) for node in nodes)]
    edit.rollback(start, token)
    edit.clock = clock  # the graph is as it was
    return gained


def _has_joined(node: ir.Node, clusters: ClusterOf) -> bool:
    """Whether a node is in one cluster with one that reads its result."""
    own = clusters.get(node)
    return own is not None and any(clusters.get(use.node) == own for use in node.outputs[0].uses())


def _preparations(graph: ir.Graph, clusters: ClusterOf, token: CancellationToken) -> Iterator[Preparation]:
    for node in token.checked(graph):
        if node in clusters or node.domain or node.op_type not in ROOTS:
            continue
        if not any(use.node in clusters for value in node.outputs for use in value.uses()):
            continue
        try:
            yield _above_split(node, clusters) if node.op_type == "Split" else _without_bias(node)
        except Refusal:
            continue


# -- Split ------------------------------------------------------------------------------------------------------------


def _above_split(split: ir.Node, clusters: ClusterOf) -> Preparation:
    source = split.inputs[0]
    node = None if source is None else source.producer()
    if source is None or node is None or node not in clusters:
        raise Absent("no cluster's node comes before the Split", split)
    need(is_op(node, *POINTWISE), f"{node.op_type} is not pointwise", node)
    need(use_count(source) == 1 and not source.is_graph_output(), "the value is used elsewhere", source)
    need(node.graph is split.graph, "they are in two graphs", split)
    at = ops.Split(split).axis_of(rank(source))
    operands = [None if value is None else _part_of(value, source, at) for value in node.inputs]
    need(any(place is not None for place in operands), "nothing is to be split", split)

    def apply(edit: Editor) -> list[ir.Node]:
        parts: dict[int, list[ir.Value]] = {}
        for position, place in enumerate(operands):
            value = node.inputs[position]
            if place is None or value is None:
                continue
            attributes = ops.changed(split.attributes.values(), axis=place)
            again = ir.Node("", "Split", [value, *split.inputs[1:]], attributes, num_outputs=len(split.outputs))
            parts[position] = list(again.outputs)
        replaced = {
            part: ops.copied(
                node, [parts[place][index] if place in parts else value for place, value in enumerate(node.inputs)]
            ).outputs[0]
            for index, part in enumerate(split.outputs)
            if use_count(part) or part.is_graph_output()
        }
        return [new for new in edit.replace(replaced, before=split, origin=[node, split]) if new.op_type != "Split"]

    return Preparation((split, node), apply)


def _part_of(value: ir.Value, result: ir.Value, at: int) -> int | None:
    """The axis along which an operand is split where the result is; None where the op broadcasts it there.

    Raises:
        Refusal: If that is not known.
    """
    shape, whole = dims(value), dims(result)
    own = at - (len(whole) - len(shape))
    if own < 0 or (shape[own] == 1 and whole[at] != 1):
        return None
    need(symbolic.equal(shape[own], whole[at]), "an operand may be broadcast along the axis", value)
    return own


# -- bias -------------------------------------------------------------------------------------------------------------


def _without_bias(node: ir.Node) -> Preparation:
    need(opset(node) >= BIASED[node.op_type], "the bias cannot be left out", node)
    need(len(node.inputs) == 3, "it has no bias", node)
    bias = node.inputs[2]
    if bias is None:
        raise Refusal("it has no bias", node)
    result = node.outputs[0]
    if node.op_type == "Gemm":
        need(attribute(node, "beta", 1.0) == 1.0, "the bias is scaled", node)
        form = None
    else:
        tensor_of(bias)
        form = (1, -1) + (1,) * (rank(result) - 2)

    def apply(edit: Editor) -> list[ir.Node]:
        bare = ops.copied(node, list(node.inputs[:2]))
        bare.outputs[0].type, bare.outputs[0].shape = result.type, facts.shape_of(result)
        added = bias if form is None else _reshaped(bias, form)
        addition = ir.Node("", "Add", [bare.outputs[0], added], ())
        edit.replace({result: addition.outputs[0]}, before=node, origin=[node])
        return [addition]

    return Preparation((node,), apply)


def _reshaped(bias: ir.Value, form: tuple[int, ...]) -> ir.Value:
    tensor = tensor_of(bias)
    array = np.ascontiguousarray(tensor.numpy()).reshape(form)
    return constant(ir.Tensor(array, dtype=tensor.dtype))
