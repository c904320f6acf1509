"""Query heads that share keys and values, as in decoders, have a kernel of their own: no head is repeated."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct, structs

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CUDA
from ortopt.framework.fusions import preferred
from ortopt.framework.placement import provider_of
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import array_of, dims, is_constant, is_never_zero, need, same_dim
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention import mask
from ortopt.patterns.attention.block import Attention, attention
from ortopt.patterns.attention.emission import bias_of_rank_4, has_standard_op, queries, replacements
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT

MULTIPLE = 8
"""What the kernel wants the size of a head to be a multiple of."""


class Found(Struct, frozen=True):
    """A block that the kernel computes.

    Attributes:
        block: The block.
        causal: Whether the mask says no more than that no query sees a later key, which the kernel knows by itself.
    """

    block: Attention
    causal: bool

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that go."""
        return self.block.nodes

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The values that the block gives."""
        return self.block.replaced


class GroupQueryAttentionFusion(RewriteRule[Found]):
    """Attention with fewer heads of keys and values than of queries → ``com.microsoft.GroupQueryAttention``.

    Where ai.onnx has no Attention for it, or on CUDA. With a past, for one sequence or one new position only: the
    kernel refuses several of both.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("opset_conversion", "constant_folding", "rotary_embedding_fusion")
    roots = ("MatMul",)
    needs = ("Softmax",)
    lookback = 12
    looks_downstream = True
    produces = ((MICROSOFT, "GroupQueryAttention"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The block, if the kernel computes the same."""
        preferred(root, [Form(*self.produces[0])])  # asked first: to recognise a block takes long
        block = attention(root)
        groups = block.queries.count != block.keys.count and block.queries.count % block.keys.count == 0
        need(groups, "each query head has keys of its own", root)
        options = scope.of(scope.graph_of(root)).options
        on_cuda = provider_of(root, options.providers) == CUDA
        need(on_cuda or not has_standard_op(block), "the standard Attention is faster", root)
        if not block.flat:  # then its operands get side by side by a Transpose, which other kernels do not need
            block = structs.replace(block, keys_first=True)
        need(block.flat, "heads are not wanted side by side", root)
        _check_kernel(block)
        for part in (block.queries, block.keys, block.values):
            part.check_layout(flat=True)
        terms = () if block.bias is None else block.bias.terms
        plain = len(terms) == 1 and terms[0].is_plain and block.bias is not None and block.bias.whole
        causal = plain and _is_causal(terms[0].step.value, block)
        return Found(block, causal)

    def numerics_of(self, found: Found) -> Numerics:
        """Whether it is the same for all numbers, rounding apart, or for finite ones."""
        return Numerics.FINITE if found.block.finite else self.numerics

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the attention; all sequences are as long as the keys say, and what pads them is in the mask."""
        block = found.block
        query = queries(block, flat=True)
        key, value = (part.merged() for part in (block.keys, block.values))
        past = (None, None) if block.past is None else (block.past.key, block.past.value)
        inputs: list[ir.Value | None] = [query, key, value, *past, *_lengths(block, query)]
        attributes = {"num_heads": block.queries.count, "kv_num_heads": block.keys.count, "scale": block.scale}
        if not found.causal:
            attributes["causal"] = 0  # which the kernel knows from ONNX Runtime 1.30 on
        if block.bias is not None and not found.causal:
            inputs += [None, None, None, bias_of_rank_4(block)]
        outputs = 1 if block.past is None else 3
        domain, op = self.produces[0]
        return replacements(block, ir.node(op, inputs, attributes, domain=domain, num_outputs=outputs).outputs)


def _check_kernel(block: Attention) -> None:
    """Refuse what the kernel of ONNX Runtime refuses, or computes otherwise."""
    root = block.core[0]
    alike = block.queries.size == block.values.size
    need(alike, "keys and values have heads of different sizes", root)
    need(block.queries.size % MULTIPLE == 0, f"the size of a head is no multiple of {MULTIPLE}", root)
    need(same_dim(block.queries.length, block.keys.length), "there may not be as many new keys as queries", root)
    sizes = (block.queries.batch, block.queries.length, block.keys.length)
    need(all(is_never_zero(dim, root) for dim in sizes), "a dimension may be 0, which the kernel refuses", root)
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
        size = _size(query, 1)
        if block.past is not None:
            size = ir.node("Add", [_size(block.past.key, 2), size]).outputs[0]
        count = ir.node("Cast", [size], {"to": ir.DataType.INT32}).outputs[0]
        total = ir.node("Reshape", [count, constant(np.zeros(0, np.int64))]).outputs[0]
        last = ir.node("Sub", [count, constant(np.array([1], np.int32))]).outputs[0]
    if isinstance(length, int) and isinstance(batch, int):
        return constant(np.full(batch, length - 1, np.int32)), total
    if batch != 1:
        last = ir.node("Expand", [last, _size(query, 0)]).outputs[0]
    return last, total


def _size(value: ir.Value, axis: int) -> ir.Value:
    """A dimension of a value, as a tensor of one element."""
    known = None if value.shape is None else dims(value)[axis]
    if isinstance(known, int):
        return constant([known])
    shape = ir.node("Shape", [value]).outputs[0]
    return ir.node("Gather", [shape, constant([axis])]).outputs[0]
