"""What can be read off an attention block: heads, sizes, mask, past; of an op that stands for one, or of a softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx_ir as ir

from ortopt.analysis.blocks import Block
from ortopt.graph import symbolic
from ortopt.graph.facts import dims_of
from ortopt.graph.match import optional
from ortopt.graph.symbolic import INVENTED, Dim
from ortopt.semantics.domains import MICROSOFT


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """What is known of an attention block; None where it is not.

    Attributes:
        heads: How many heads read.
        kv_heads: How many heads are read.
        head_size: Elements of a head.
        queries: Number of queries, as a number or an expression.
        keys: Number of keys, likewise; with a past, ``past + new``.
        mask: How keys are left out: ``causal``, ``given``, both, or ``none``.
        past: Whether keys and values of earlier positions come from outside.
    """

    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    queries: str | None = None
    keys: str | None = None
    mask: str | None = None
    past: bool | None = None


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where an op has what is asked for.

    Attributes:
        heads: The attribute with the number of heads that read.
        kv_heads: The attribute with the number of those that are read; the same number where there is none.
        masks: The inputs that leave keys out.
        past: The input with the past keys.
        causal: The attribute that leaves out the keys behind a query; empty if the op always does.
    """

    heads: str
    kv_heads: str
    masks: tuple[int, ...]
    past: int
    causal: str


_LAYOUTS: Final[Mapping[tuple[str, str], _Layout]] = {
    ("", "Attention"): _Layout("q_num_heads", "kv_num_heads", (3,), 4, "is_causal"),
    (MICROSOFT, "Attention"): _Layout("num_heads", "num_heads", (3, 5), 4, "unidirectional"),
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): _Layout("num_heads", "num_heads", (3, 4), 5, "unidirectional"),
    (MICROSOFT, "GroupQueryAttention"): _Layout("num_heads", "kv_num_heads", (10,), 3, ""),
    (MICROSOFT, "MultiHeadAttention"): _Layout("num_heads", "num_heads", (4, 5), 6, "unidirectional"),
}


def facts_of(block: Block) -> AttentionFacts:
    """What is known of an attention block.

    Args:
        block: A block of the family ``attention``.
    """
    if not block.fused:
        return _of_scores(block.node.inputs[0] if block.node.inputs else None)
    layout = _LAYOUTS.get(block.node.op_identifier()[:2])
    return AttentionFacts() if layout is None else _of_op(block.node, layout)


def _of_scores(scores: ir.Value | None) -> AttentionFacts:
    """Scores are [batch, heads, queries, keys], or batch and heads are one dimension."""
    dims = None if scores is None else dims_of(scores)
    if dims is None or len(dims) < 2:
        return AttentionFacts()
    heads = dims[1] if len(dims) == 4 and isinstance(dims[1], int) else None
    return AttentionFacts(heads=heads, queries=_shown(dims[-2]), keys=_shown(dims[-1]))


def _of_op(node: ir.Node, layout: _Layout) -> AttentionFacts:
    query, past = _dims(node, 0), _dims(node, layout.past)
    key = _dims(node, 1) if node.op_type != "Attention" or not node.domain else query  # the packed op's 1 is a weight
    heads, kv_heads = _number(node, layout.heads), _number(node, layout.kv_heads)
    queries, keys = (_shown(dims[-2]) if dims is not None and len(dims) >= 3 else None for dims in (query, key))
    if query is not None and len(query) == 4:
        heads = query[1] if isinstance(query[1], int) else None
        kv_heads = key[1] if key is not None and isinstance(key[1], int) else None
    masks = ["causal"] * _is_causal(node, layout) + ["given"] * any(optional(node, place) for place in layout.masks)
    if keys is not None and past is not None and len(past) == 4:
        keys = f"{_shown(past[-2]) or '?'} + {keys}"
    mask, has_past = " and ".join(masks) or "none", optional(node, layout.past) is not None
    return AttentionFacts(heads, kv_heads, _head_size(node, heads), queries, keys, mask, has_past)


def _shown(dim: Dim) -> str | None:
    """A dimension for people; None if it is not known, or depends on what is computed."""
    return None if dim is symbolic.UNKNOWN or INVENTED in str(dim) else str(dim)


def _head_size(node: ir.Node, heads: int | None) -> int | None:
    """Elements of a head of the result, which has the size of the values'."""
    dims = dims_of(node.outputs[0])
    if not dims or not isinstance(dims[-1], int):
        return None
    if len(dims) == 4:
        return int(dims[-1])
    return int(dims[-1]) // heads if heads else None


def _dims(node: ir.Node, index: int) -> Sequence[Dim] | None:
    value = optional(node, index)
    return None if value is None else dims_of(value)


def _number(node: ir.Node, name: str) -> int | None:
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else attribute.as_int()


def _is_causal(node: ir.Node, layout: _Layout) -> bool:
    return not layout.causal or bool(_number(node, layout.causal))
