"""Attention that ONNX Runtime's kernels take in another form, and the bias that is added to its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU, Support, support
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    FLOAT16,
    Dim,
    attribute,
    dims,
    dtype,
    inputs,
    is_op,
    is_used,
    need,
    need_fixed,
    need_float32,
    only_user,
    opset,
    producer,
    rank,
    same_dim,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.relative_positions import MAX_NODES, Differences, differences, joined, op
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule

HEADS_FIRST: tuple[int, ...] = (0, 2, 1, 3)
PAST_VALUE = 5
SCORES = 3
UNKNOWN = "the number of heads, or their size, is not known"


class AttentionTransposeFusion(RewriteRule[Match]):
    """``Transpose(Attention(Transpose(q), Transpose(k), Transpose(v), …))`` → ``Attention<num_heads>(q, k, v, …)``.

    Attention can read heads side by side, as projections give them, and give them so: without a Transpose.

    Heads then stand side by side within each position, in operands of three dimensions. A past and the mask stay as
    they are: they have the same dimensions for both.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Attention",)
    opsets = (23, NEWEST_OPSET)
    looks_downstream = True
    providers = (CPU,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """An Attention whose three operands were transposed, and whose result is transposed back."""
        need(all(value is None for value in root.inputs[PAST_VALUE + 1 :]), "it counts its keys", root)
        need(not any(is_used(value) for value in root.outputs[SCORES:]), "its scores are asked for", root)
        need(dtype(root.outputs[0]) in {FLOAT, FLOAT16}, "its numbers are of a type that has no kernel", root)
        taken_apart = support(CPU, root, opset(root)) is Support.EXPANDED
        need(not taken_apart, "there is no kernel for its mask, and parts of it would need a batch", root)
        operands = tuple(_before(value) for value in inputs(root, 3))
        behind = only_user(root.outputs[0], "Transpose")
        need(_turns(behind), "its result is transposed in another way", behind)
        heads = [_heads(value) for value in operands]
        need(heads[1][0] == heads[2][0], "keys and values have other numbers of heads", root)
        more = {old: place for place, old in enumerate(root.outputs[1:SCORES], 1) if is_used(old)}
        y = behind.outputs[0]
        return Match((root, behind), lambda: _side_by_side(root, y, operands, heads, more), (y, *more))


def _side_by_side(
    root: ir.Node,
    y: ir.Value,
    operands: Sequence[ir.Value],
    heads: Sequence[tuple[int, int]],
    more: Mapping[ir.Value, int],
) -> dict[ir.Value, ir.Value]:
    """Build the Attention with heads side by side, and split its result into heads.

    Args:
        root: The Attention.
        y: Its result with heads last but one.
        operands: Queries, keys and values with heads last but one.
        heads: How many heads they have, and of which size.
        more: The keys and values for the next step, and the places of these results.
    """
    given = [_reshaped(operand, [0, 0, count * size]) for operand, (count, size) in zip(operands, heads, strict=True)]
    count, kv_count, size = heads[0][0], heads[1][0], heads[2][1]
    attributes = ops.changed(root.attributes.values(), q_num_heads=count, kv_num_heads=kv_count)
    node = ir.Node("", "Attention", [*given, *root.inputs[3:]], attributes, num_outputs=len(root.outputs))
    return {y: _reshaped(node.outputs[0], [0, 0, count, size])} | {old: node.outputs[at] for old, at in more.items()}


def _before(value: ir.Value) -> ir.Value:
    """An operand before its heads came first."""
    transpose = producer(value, "Transpose")
    need(_turns(transpose), "an operand is transposed in another way", transpose)
    return inputs(transpose, 1)[0]


def _turns(transpose: ir.Node) -> bool:
    return ops.Transpose(transpose).order == HEADS_FIRST


def _heads(value: ir.Value) -> tuple[int, int]:
    """How many heads an operand has, and their size."""
    count, size = need_fixed(dims(value, 4)[2:], UNKNOWN, value)
    need(count * size > 0, UNKNOWN, value)
    return count, size


def _reshaped(value: ir.Value, shape: list[int]) -> ir.Value:
    return ir.node("Reshape", [value, constant(shape)]).outputs[0]


INSTEAD = Form(MICROSOFT, "MultiHeadAttention", "instead of Attention")
QKV = 3


class LongAttentionConversion(CpuRule[Match]):
    """``Attention(q, k, v)`` without a mask, over a long sequence → ``com.microsoft.MultiHeadAttention(q, k, v)``.

    Over long sequences ONNX Runtime's MultiHeadAttention never holds all scores: it works block by block, in cache.

    Its kernel computes the softmax as it goes where nothing is added to the scores: faster over a long sequence, and
    slower than Attention's over short sequences.
    """

    roots = ("Attention",)
    opsets = (23, NEWEST_OPSET)
    produces = ((MICROSOFT, "MultiHeadAttention"),)
    weighs = (INSTEAD,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Queries, keys and values of one length, with heads side by side, and nothing else."""
        operands = inputs(root, QKV)
        need(all(value is None for value in root.inputs[QKV:]), "it has a mask, or a past", root)
        need(not any(map(is_used, root.outputs[1:])), "more is asked of it", root)
        for name in ("is_causal", "softcap", "qk_matmul_output_mode", "softmax_precision"):
            need(not attribute(root, name, 0), f"MultiHeadAttention has no {name}", root)
        heads = attribute(root, "q_num_heads", 0)
        need(heads > 0, "heads come first", root)
        need(heads == attribute(root, "kv_num_heads", 0), "query heads share keys", root)
        scale = attribute(root, "scale", None)
        need(scale is None or scale > 0, "MultiHeadAttention takes such a scale for none", root)
        for value in operands:
            need_float32(value)
        check_faster(root, INSTEAD, length=_length(operands, root))
        attributes = {"num_heads": heads} | ({} if scale is None else {"scale": scale})
        return Match((root,), lambda: ir.node("MultiHeadAttention", operands, attributes, domain=MICROSOFT))


def _length(operands: tuple[ir.Value, ...], root: ir.Node) -> Dim:
    """How many positions there are."""
    shapes = [dims(value, 3) for value in operands]
    for axis, what in ((1, "lengths"), (2, "sizes")):
        first, *others = (shape[axis] for shape in shapes)
        need(all(same_dim(first, other) for other in others), f"the {what} are not known to be equal", root)
    return shapes[0][1]


DIFFERENCES: Final = Form("", "Gather", "for each difference of positions")

SPARE: Final = 16
"""Elements behind the last one that counts, so that it is not among those that kernels compute one by one: nearly all
elements of the matrix are not, either."""

HEADS_BEFORE_PAIRS: Final = (2, 0, 1)


class RelativePositionConversion(CpuRule[Match]):
    """``Transpose(Gather(table, f(j - i)))`` → the same of the vector of differences, copied to equal diagonals.

    A bias by relative position is a function of one number, not of two: each of its diagonals is computed once.

    T5, MPNet and WavLM put the differences of all pairs of positions through a dozen ops, to look each up in a table.
    There are n² differences, and 2·n - 1 different ones. The matrix with equal diagonals is then made from one row by
    copies: n rows of `length` elements one behind the other, cut into rows of `length` - 1, shift by one from row to
    row.

    For the bias by relative position that T5, MPNet and WavLM compute from ``f``, a dozen ops on integers.

    It is exact as a transposition is: each difference goes through the ops that it went through. Where its Log lies at
    the edge of a bucket, ONNX Runtime itself gives one bucket or the other by the element's place: the last elements of
    each thread's share are computed one by one, the others many at a time, and the two may differ in the last bit. In
    the models named above they do so for no distance that is looked up.
    """

    roots = ("Transpose",)
    opsets = (14, NEWEST_OPSET)  # before, no Reshape gave an empty image
    lookback = MAX_NODES
    weighs = (DIFFERENCES,)

    def match(self, root: ir.Node) -> Match:
        """A table that is looked up by what pointwise ops compute of the differences of one range's elements."""
        need(ops.Transpose(root).order == HEADS_BEFORE_PAIRS, "the rows do not become columns", root)
        gather = producer(root.inputs[0], "Gather")
        table, buckets = inputs(gather, 2)
        need(rank(table) == 2 and ops.Gather(gather).axis == 0, "it is no table of rows", gather)
        (heads,) = need_fixed(dims(table)[1:], "the length of a row is not known", table)
        need(heads > 0, "the length of a row is not known", table)
        of = differences(buckets, root)
        check_faster(root, DIFFERENCES, nodes=len(of.nodes))
        nodes = () if _is_shared(buckets) else of.nodes
        return Match((*nodes, gather, root), lambda: _bias(table, heads, of))


def _is_shared(buckets: ir.Value) -> bool:
    """Whether other tables are looked up by the same matrix: layers may have tables of their own."""
    return use_count(buckets) > 1 and all(is_op(user, "Gather") and position for user, position in buckets.uses())


def _bias(table: ir.Value, heads: int, of: Differences) -> ir.Value:
    """Build the row of all differences, what is computed of it, and the matrix."""
    columns = ir.node("Transpose", [table], {"perm": [1, 0]}).outputs[0]
    rows = ir.node("Gather", [columns, of.row(SPARE)], {"axis": 1}).outputs[0]
    return _diagonals(rows, heads, of.count, of.last)


def _diagonals(rows: ir.Value, heads: int, count: ir.Value, last: ir.Value) -> ir.Value:
    """The matrices whose diagonals are the elements of rows.

    Args:
        rows: One row of 2·count - 1 + SPARE elements for each matrix.
        heads: How many matrices there are.
        count: Rows of a matrix, and columns.
        last: One less.
    """
    end = op("Add", last, count)
    shorter = op("Add", end, constant((SPARE - 1,)))
    copies = op("Tile", rows, joined(constant((1,)), count))
    flat = op("Slice", copies, constant((0,)), op("Mul", count, shorter), constant((1,)))
    target = joined(constant((heads,)), count, shorter)
    shifted = ir.node("Reshape", [flat, target], {"allowzero": 1}).outputs[0]
    return op("Slice", shifted, last, end, constant((2,)))
