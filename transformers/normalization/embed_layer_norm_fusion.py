"""The embeddings of a language model, their sum and its normalization become one kernel that looks rows up itself."""

from __future__ import annotations

from functools import partial
from itertools import permutations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    attribute,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    opset,
    optional,
    same_dim,
    scalar,
)
from ortopt.graph.walk import Question, walk
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.layer_normalization import check_fused_normalization
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

MOVES = ("Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


class Lookup(Struct, frozen=True):
    """Rows of a table.

    Attributes:
        table: The table [rows, hidden].
        rows: How many rows it has.
        ids: The integers that say which, [batch, length] or [1, length].
    """

    table: ir.Value
    rows: int
    ids: ir.Value


class EmbedLayerNormFusion(RewriteRule[Match]):
    """``LayerNormalization(words[ids] + positions + segments[…])`` → ``com.microsoft.EmbedLayerNormalization``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "layer_norm_fusion")
    roots = ("LayerNormalization",)
    lookback = 8
    produces = ((MICROSOFT, "EmbedLayerNormalization"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Two or three embeddings that are normalized over the last of three dimensions."""
        total, scale = inputs(root, 2)
        shape = dims(total, 3)
        check_fused_normalization(root, (scale, optional(root, 2)), shape[2])
        additions: list[ir.Node] = []
        terms = _terms(total, additions)
        need(len(terms) in {2, 3}, "it does not add two or three embeddings", total)
        words, positions, segments = _assigned(terms, shape, total)
        build = partial(_kernel, root, words, positions, segments)
        return Match((*additions, root), build, (total,))  # the sum too: the kernel gives it as an output of its own


def _kernel(
    root: ir.Node, words: Lookup, positions: Lookup | ir.Value, segments: Lookup | None
) -> dict[ir.Value, ir.Value]:
    """The kernel's node, with integers that count from the first row only, in place of the sum and its normalization.

    Args:
        root: The normalization.
        words: The rows of words.
        positions: The rows of positions; or a value [length, hidden] or [1, length, hidden] that is added as it is.
        segments: The rows of segments, or None.
    """
    total, scale = inputs(root, 2)
    bias = optional(root, 2)
    operands = [
        _ids(words),
        None if segments is None else _ids(segments),
        words.table,
        positions.table if isinstance(positions, Lookup) else _rows(positions, opset(root)),
        None if segments is None else segments.table,
        scale,
        _zeros(scale, words.table) if bias is None else bias,
    ]
    if isinstance(positions, Lookup):
        operands += [None, _ids(positions)]
    attributes = {"epsilon": attribute(root, "epsilon", 1e-5), "mask_index_type": 0}
    outputs = [ir.Value()]
    replaced = {root.outputs[0]: outputs[0]}
    if not is_used_once(total):
        outputs += [ir.Value(name=""), ir.Value()]
        replaced[total] = outputs[2]
    ir.node("EmbedLayerNormalization", operands, attributes, domain=MICROSOFT, outputs=outputs)
    return replaced


def _terms(total: ir.Value, additions: list[ir.Node]) -> list[ir.Value]:
    """What is added up to a sum; the additions are collected, the last one first."""
    terms = []
    pending = [total]
    while pending:
        value = pending.pop()
        node = value.producer()
        if not is_op(node, "Add") or (additions and not is_used_once(value)) or len(additions) > 2:
            terms.append(value)
            continue
        additions.append(node)
        pending.extend(reversed(inputs(node, 2)))
    return terms


def _assigned(
    terms: list[ir.Value], shape: tuple[Dim, ...], about: ir.Value
) -> tuple[Lookup, Lookup | ir.Value, Lookup | None]:
    """Which term gives words, which positions, which segments: those alike for all sequences are positions."""
    lookups = [_lookup(term, shape) for term in terms]
    shared = [_shared(term, lookup, shape) for term, lookup in zip(terms, lookups, strict=True)]
    each = [lookup is not None and same_dim(dims(lookup.ids)[0], shape[0]) for lookup in lookups]
    orders = permutations(range(len(terms)))
    for words, positions, *segments in sorted(orders, key=lambda order: shared[order[1]] is None):
        position = shared[positions] or lookups[positions]
        if each[words] and position is not None and all(each[one] for one in segments):
            first, last = lookups[words], lookups[segments[0]] if segments else None
            assert first is not None
            return first, position, last
    raise Refusal("it does not add rows of words and of positions", about)


def _lookup(term: ir.Value, shape: tuple[Dim, ...]) -> Lookup | None:
    """The rows that a Gather takes, if there is a row for each position of each sequence, or of one for all."""
    node = term.producer()
    if not is_op(node, "Gather"):
        return None
    table, ids = inputs(node, 2)
    try:
        rows, hidden = dims(table, 2)
        batch, length = dims(ids, 2)
        along = ops.Gather(node).axis
    except Refusal:
        return None
    fits = same_dim(hidden, shape[2]) and same_dim(length, shape[1]) and (batch == 1 or same_dim(batch, shape[0]))
    if along or not fits or not isinstance(rows, int) or not rows:
        return None
    return Lookup(table, rows, ids)


def _shared(term: ir.Value, lookup: Lookup | None, shape: tuple[Dim, ...]) -> Lookup | ir.Value | None:
    """A term that is the same for all sequences: rows of a table if it is such, else the value itself."""
    if lookup is not None:
        return lookup if dims(lookup.ids)[0] == 1 else None
    own = dims(term)
    if len(own) < 2 or not all(map(same_dim, own[-2:], shape[-2:])) or own[:-2] not in {(), (1,)}:
        return None
    return term


def _ids(lookup: Lookup) -> ir.Value:
    """The integers of a lookup as the kernel takes them: of 32 bits, and none negative, which counts from the end."""
    ids = lookup.ids
    if is_constant(ids):
        content = array_of(ids)
        return constant(np.where(content < 0, content + lookup.rows, content).astype(np.int32))
    if not walk(_is_never_negative, ids, unknown=False):
        rows = constant(np.asarray(lookup.rows, dtype(ids).numpy()))
        ids = ir.node("Mod", [ids, rows]).outputs[0]
    if lookup.ids.dtype == ir.DataType.INT32:
        return ids
    return ir.node("Cast", [ids], {"to": ir.DataType.INT32}).outputs[0]


def _is_never_negative(value: ir.Value) -> Question[ir.Value, bool]:
    """Whether no element of an integer value is negative: it goes back to constants and ranges that are not."""
    if is_constant(value):
        return bool((array_of(value) >= 0).all())
    node = value.producer()
    if is_op(node, "Range"):
        start, delta = node.inputs[0], node.inputs[2]
        return is_constant(start) and is_constant(delta) and scalar(start) >= 0 and scalar(delta) > 0
    if not is_op(node, "Cast", *MOVES):
        return False
    source = node.inputs[0]
    widened = not is_op(node, "Cast") or (source is not None and source.dtype == ir.DataType.INT32)
    return widened and source is not None and (yield source)


def _rows(value: ir.Value, version: int) -> ir.Value:
    """A value [length, hidden], out of one that may have a dimension of 1 before these."""
    if len(dims(value)) == 2:
        return value
    return ops.squeezed(value, [0], version)


def _zeros(scale: ir.Value, table: ir.Value) -> ir.Value:
    """A bias that adds nothing, of as many elements as the scale."""
    (width,) = dims(scale, 1)
    assert isinstance(width, int)
    return constant(np.full(width, -0.0, dtype(table).numpy()))  # x + -0.0 is x, also for a zero of either sign
