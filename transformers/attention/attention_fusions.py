"""A block of attention, in whatever spelling, becomes one kernel that moves no heads around."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import structs

from ortopt.analysis.costs import Form
from ortopt.analysis.kernel_history import MASKED_ROWS, NO_QUERY
from ortopt.analysis.kernels import CUDA
from ortopt.framework.fusions import preferred
from ortopt.framework.placement import provider_of
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, array_of, dims, dtype, is_constant, need, need_never_zero, opset, same_dim
from ortopt.graph.provenance import NEEDS_KEY
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention import mask
from ortopt.patterns.attention.block import Attention, attention
from ortopt.patterns.attention.contraction import PRODUCTS
from ortopt.patterns.attention.emptiness import (
    Sizes,
    check_masked_rows,
    check_standard_op,
    expects_none,
    guarded,
    may_be_empty,
    may_have_no_query,
    may_read_no_key,
)
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.views.layouts import size_along

STANDARD_FROM = 23
"""The version of ai.onnx that has Attention."""

MULTIPLE = 8
"""What the kernel of GroupQueryAttention wants the size of a head to be a multiple of."""


class _BlockFusion(RewriteRule[Attention]):
    """What the passes for blocks have in common."""

    levels = (TransformerLevel.LEVEL2,)
    lookback = 12
    looks_downstream = True
    numerics = Numerics.REORDERED

    def numerics_of(self, found: Attention) -> Numerics:
        """Whether it is the same for all numbers, rounding apart, or for finite ones."""
        return Numerics.FINITE if found.finite else self.numerics


class AttentionFusion(_BlockFusion):
    """``Softmax(scale · q · kᵀ + mask) · v``, with heads split and joined → ``Attention(q, k, v, mask, past)``.

    The standard operator where the opset has it and no dimension can be 0, which its kernel refuses, or, where query
    heads share keys, in an If that asks; else ONNX Runtime's MultiHeadAttention, for which key heads that query heads
    share are repeated, if nothing caps the scores, and no row that can be masked as a whole is guarded.
    """

    after = ("opset_conversion", "constant_folding", "rotary_embedding_fusion", "group_query_attention_fusion")
    roots = PRODUCTS
    produces = ((MICROSOFT, "MultiHeadAttention"),)
    fuses = (("", "Attention"), *produces)

    def match(self, root: ir.Node) -> Attention:
        """The block, if there is an op for it."""
        block = attention(root, assumes_nonempty=True)  # the kernel runs only there
        if _has_standard_op(block):
            check_masked_rows(block)
            _check_layouts(block)
            return block
        block = attention(root)
        if not block.flat or block.keys.count != block.queries.count:
            block = block.as_read()
        _check_own_op(block)
        _check_layouts(block)
        return block

    def rewrite(self, found: Attention) -> dict[ir.Value, ir.Value]:
        """Build the attention: on values that are not split into heads where there are such ones."""
        standard = _has_standard_op(found)
        node = _standard(found) if standard else _multi_head(found)
        if standard and may_be_empty(found):
            sizes = Sizes(found.queries.batch, found.queries.length, found.keys.count, found.keys.size)
            node = guarded(node, sizes, found.core[0])
        return _replacements(found, node.outputs)


class GroupQueryAttentionFusion(_BlockFusion):
    """Attention with fewer heads of keys and values than of queries → ``com.microsoft.GroupQueryAttention``.

    Where ai.onnx has no Attention for it, or on CUDA. With a past, for one sequence or one new position only: the
    kernel refuses several of both.
    """

    after = ("opset_conversion", "constant_folding", "rotary_embedding_fusion")
    roots = ("MatMul",)
    needs = ("Softmax",)
    produces = ((MICROSOFT, "GroupQueryAttention"),)

    def match(self, root: ir.Node) -> Attention:
        """The block, if the kernel computes the same."""
        preferred(root, [Form(*self.produces[0])])  # asked first: to recognise a block takes long
        block = attention(root)
        groups = block.queries.count != block.keys.count and block.queries.count % block.keys.count == 0
        need(groups, "each query head has keys of its own", root)
        options = scope.of_node(root).options
        on_cuda = provider_of(root, options.providers) == CUDA
        need(on_cuda or not _has_standard_op(block), "the standard Attention is faster", root)
        if not block.flat:  # then its operands get side by side by a Transpose, which other kernels do not need
            block = structs.replace(block, keys_first=True)
        need(block.flat, "heads are not wanted side by side", root)
        _check_kernel(block)
        for part in (block.queries, block.keys, block.values):
            part.check_layout(flat=True)
        terms = () if block.bias is None else block.bias.terms
        plain = len(terms) == 1 and terms[0].is_plain and block.bias is not None and block.bias.whole
        causal = plain and _is_causal(terms[0].step.value, block)
        return structs.replace(block, bias=None, causal=True) if causal else block

    def rewrite(self, found: Attention) -> dict[ir.Value, ir.Value]:
        """Build the attention; all sequences are as long as the keys say, and what pads them is in the mask."""
        query = _queries(found, flat=True)
        key, value = (part.merged() for part in (found.keys, found.values))
        past = (None, None) if found.past is None else (found.past.key, found.past.value)
        inputs: list[ir.Value | None] = [query, key, value, *past, *_lengths(found, query)]
        attributes = {"num_heads": found.queries.count, "kv_num_heads": found.keys.count, "scale": found.scale}
        if not found.causal:
            attributes["causal"] = 0  # which the kernel knows from ONNX Runtime 1.30 on
        if found.bias is not None:
            inputs += [None, None, None, _bias_of_rank_4(found)]
        outputs = 1 if found.past is None else 3
        domain, op = self.produces[0]
        return _replacements(found, ir.node(op, inputs, attributes, domain=domain, num_outputs=outputs).outputs)


# -- what the passes have in common ------------------------------------------------------------------------------------


def _has_standard_op(block: Attention) -> bool:
    """Whether ai.onnx has an op for a block, whose kernel runs wherever the block does, or in an If around it."""
    if block.keys_first or opset(block.core[0]) < STANDARD_FROM:
        return False
    try:
        check_standard_op(block)
    except Refusal:
        return False
    return True


def _check_layouts(block: Attention) -> None:
    """Refuse operands that cannot be brought into the layout that is wanted.

    Raises:
        Refusal: If a size that a layout needs is not known.
    """
    block.queries.check_layout(flat=block.flat or block.keys_first)
    for part in (block.keys, block.values):
        part.check_layout(flat=block.flat and not block.keys_first)


def _operands(block: Attention) -> list[ir.Value]:
    """Queries, keys and values: with heads side by side where there are such ones, else with heads first."""
    others = (block.keys, block.values)
    query = _queries(block, flat=block.keys_first or block.flat)
    if block.keys_first:
        return [query, *(_repeated(part.heads_first(), part.count, block.queries.count) for part in others)]
    return [query, *(part.merged() if block.flat else part.heads_first() for part in others)]


def _queries(block: Attention, *, flat: bool) -> ir.Value:
    """The queries, multiplied by what those of each head are.

    Args:
        block: The block.
        flat: Whether heads stand side by side, else first.
    """
    own = block.queries
    value = own.merged() if flat else own.heads_first()
    if not block.by_head:
        return value
    numbers = np.array(block.by_head, dtype(own.views[0].value).numpy())
    numbers = np.repeat(numbers, own.size) if flat else numbers.reshape(-1, 1, 1)
    return ir.node("Mul", [value, constant(numbers)]).outputs[0]


def _repeated(value: ir.Value, count: int, wanted: int) -> ir.Value:
    """Heads, [batch, heads, length, size], each as often as query heads share it."""
    if count == wanted:
        return value
    heads = np.arange(wanted, dtype=np.int64) // (wanted // count)
    return ir.node("Gather", [value, constant(heads)], {"axis": 1}).outputs[0]


def _key_positions(block: Attention) -> ir.Value:
    """How many keys there are, with those of a past: known before they are put together."""
    new = block.keys.positions()
    if block.past is None:
        return new
    return ir.node("Add", [size_along(block.past.key, 2), new]).outputs[0]


def _bias_of_rank_4(block: Attention) -> ir.Value:
    """What is added to the scores of a block that adds something, with a row for each query: as kernels want it."""
    assert block.bias is not None
    outside = block.past is None or block.bias.whole  # else the keys are not put together yet
    length = None if outside else _key_positions(block)
    total = block.bias.full(block.bias.build(), block.queries, block.read_keys, length)
    return block.bias.of_rank_4(total, opset(block.core[0], ""))


def _replacements(block: Attention, results: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """What new values stand for.

    Args:
        block: The block.
        results: The result of an op for it, and the present keys and values if there is a past.
    """
    result, *presents = results
    replaced = block.give(result)
    if block.past is not None:
        replaced |= dict(zip((block.past.present_key, block.past.present_value), presents, strict=True))
    return replaced


# -- Attention and MultiHeadAttention ----------------------------------------------------------------------------------


def _check_own_op(block: Attention) -> None:
    """Refuse where MultiHeadAttention would not compute the same."""
    root = block.core[0]
    need(not block.cap, "MultiHeadAttention has no cap", root)
    shared = all(part.count and not block.queries.count % part.count for part in (block.keys, block.values))
    need(shared, "the heads of keys are not repeated as often as each other", root)
    if not block.flat:
        moved, _ = block.result.best(block.result.roles.merged)
        need(moved > 0, "MultiHeadAttention gives heads side by side, which nothing asks for", root)
    if block.keys_first or block.past is not None:
        alike = block.keys.size == block.values.size
        need(alike, "MultiHeadAttention wants keys and values with heads of one size", root)
    need(
        not may_read_no_key(block),
        "MultiHeadAttention gives NaN where a row is masked as a whole, and the original gives 0",
        root,
    )


def _standard(block: Attention) -> ir.Node:
    attributes: dict[str, float | int] = {"scale": block.scale}
    if block.flat:
        attributes |= {"q_num_heads": block.queries.count, "kv_num_heads": block.keys.count}
    query, key, value = _operands(block)
    bias: ir.Value | None = None
    if block.cap:
        attributes["softcap"] = block.cap
    if block.bias is not None:
        asked = block.bias.is_cut or (block.past is not None and not block.bias.whole)
        length = _key_positions(block) if asked else None
        bias = mask.unmasked_bias(block.bias.build(length), guarded=block.guarded, kind=block.bias.kind)
        bias = block.bias.full(bias, block.queries, block.read_keys, length)
    needs = {NEEDS_KEY: MASKED_ROWS} if may_read_no_key(block) else {}
    if block.past is None:
        given = [query, key, value, *([] if bias is None else [bias])]
        return ir.node("Attention", given, attributes, metadata_props=needs)
    inputs = [query, key, value, bias, block.past.key, block.past.value]
    return ir.node("Attention", inputs, attributes, num_outputs=3, metadata_props=needs)


def _multi_head(block: Attention) -> ir.Node:
    attributes = {"num_heads": block.queries.count, "scale": block.scale}
    query, key, value = _operands(block)
    inputs: list[ir.Value | None] = [query, key, value]
    if block.bias is not None:
        inputs += [None, None, _bias_of_rank_4(block)]
    if block.past is not None:
        inputs += [None] * (6 - len(inputs)) + [block.past.key, block.past.value]
    outputs = 1 if block.past is None else 3
    needs = {NEEDS_KEY: NO_QUERY} if may_have_no_query(block) and expects_none(block.core[0]) else {}
    return ir.node(
        "MultiHeadAttention", inputs, attributes, domain=MICROSOFT, num_outputs=outputs, metadata_props=needs
    )


# -- GroupQueryAttention -----------------------------------------------------------------------------------------------


def _check_kernel(block: Attention) -> None:
    """Refuse what the kernel of ONNX Runtime refuses, or computes otherwise."""
    root = block.core[0]
    alike = block.queries.size == block.values.size
    need(alike, "keys and values have heads of different sizes", root)
    need(block.queries.size % MULTIPLE == 0, f"the size of a head is no multiple of {MULTIPLE}", root)
    need(same_dim(block.queries.length, block.keys.length), "there may not be as many new keys as queries", root)
    sizes = (block.queries.batch, block.queries.length, block.keys.length)
    need_never_zero(sizes, "a dimension may be 0, which the kernel refuses", root)
    one = block.past is None or 1 in (block.queries.batch, block.queries.length)
    need(one, "with a past, the kernel takes one sequence or one new position", root)
    need(not block.cap, "the scores are capped", root)
    infinite = block.guarded and block.bias is not None and block.bias.depth is mask.Depth.UNKNOWN
    need(not infinite, "the kernel gives NaN where a row is masked as a whole, and the original gives 0", root)


def _is_causal(bias: ir.Value | None, block: Attention) -> bool:
    """Whether a mask is a constant that hides from each query the keys behind it, and nothing else."""
    *_, queries, keys = block.scores
    if bias is None or not is_constant(bias) or not isinstance(queries, int) or not isinstance(keys, int):
        return False
    content = array_of(bias)
    if content.shape[-2:] != (queries, keys):
        return False
    seen = np.tri(queries, keys, keys - queries, dtype=bool)
    lowest = np.finfo(content.dtype).min if content.dtype.kind == "f" else -np.inf
    return bool((content[..., seen] == 0).all() and (content[..., ~seen] <= lowest).all())


def _lengths(block: Attention, query: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The position of each sequence's last key, and how many keys there are: the same for all sequences."""
    batch, length = block.queries.batch, block.scores[3]
    if isinstance(length, int):
        total, last = constant(np.array(length, np.int32)), constant(np.array([length - 1], np.int32))
    else:
        size = _size(query, 1, block.queries.length)
        if block.past is not None:
            past = _size(block.past.key, 2, dims(block.past.key)[2])
            size = ir.node("Add", [past, size]).outputs[0]
        count = ir.node("Cast", [size], {"to": ir.DataType.INT32}).outputs[0]
        total = ir.node("Reshape", [count, constant(np.zeros(0, np.int64))]).outputs[0]
        last = ir.node("Sub", [count, constant(np.array([1], np.int32))]).outputs[0]
    if isinstance(length, int) and isinstance(batch, int):
        return constant(np.full(batch, length - 1, np.int32)), total
    if batch != 1:
        last = ir.node("Expand", [last, _size(query, 0, batch)]).outputs[0]
    return last, total


def _size(value: ir.Value, axis: int, dim: Dim) -> ir.Value:
    """A dimension of a value, as a tensor of one element: a number where it is one."""
    return constant([dim]) if isinstance(dim, int) else size_along(value, axis)
