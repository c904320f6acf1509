"""The blocks that are single ops in a model, by kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

KINDS = ("attention", "rotary", "layer_norm", "rms_norm", "group_norm", "activation")

NORMS = {
    "LayerNormalization": "layer_norm",
    "SkipLayerNormalization": "layer_norm",
    "EmbedLayerNormalization": "layer_norm",
    "RMSNormalization": "rms_norm",
    "SimplifiedLayerNormalization": "rms_norm",
    "SkipSimplifiedLayerNormalization": "rms_norm",
    "GroupNormalization": "group_norm",
    "GroupNorm": "group_norm",
    "SkipGroupNorm": "group_norm",
}

FUNCTIONS = {
    "BiasGelu": "gelu",
    "BiasSplitGelu": "gelu",
    "FastGelu": "gelu_tanh",
    "HardSwish": "hard_swish",
    "Mish": "mish",
}
"""Ops of one function; Gelu, QuickGelu and Swish have an attribute that chooses."""

PAST_INPUTS = {
    "": (4, 5),
    "GroupQueryAttention": (3, 4),
    "MultiHeadAttention": (6, 7),
    "DecoderMaskedMultiHeadAttention": (5, 6),
    "Attention": (4, 4),
    "QAttention": (8, 8),
}
"""Where ops take the past, by name; the empty name is the standard Attention."""

MASK_INPUTS = {
    "": (3,),
    "GroupQueryAttention": (),
    "MultiHeadAttention": (4, 5),
    "DecoderMaskedMultiHeadAttention": (3, 4),
    "Attention": (3, 5),
    "QAttention": (5,),
}
"""Where ops take what masks the scores or is added to them."""


@dataclass(frozen=True, slots=True)
class Head:
    """What an attention op says of itself.

    Attributes:
        heads: Heads of the queries; 0 if unknown.
        kv_heads: Heads of keys and values.
        masked: Whether something is added to the scores, or they are causal.
        past: Whether it takes and gives the cache.
    """

    heads: int
    kv_heads: int
    masked: bool
    past: bool


@dataclass(frozen=True, slots=True)
class Fused:
    """The single ops of a model.

    Attributes:
        attention: Each attention.
        counts: How many of each other kind there are; activations by function, as ``activation gelu``.
    """

    attention: tuple[Head, ...]
    counts: dict[str, int]


def nodes(model: ir.Model) -> Iterator[ir.Node]:
    """All nodes, those of nested graphs and of functions included."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def fused(model: ir.Model) -> Fused:
    """The blocks that are single ops."""
    attention: list[Head] = []
    counts: dict[str, int] = {}
    for node in nodes(model):
        head = _attention(node)
        if head is not None:
            attention.append(head)
        for kind, number in _others(node):
            counts[kind] = counts.get(kind, 0) + number
    return Fused(tuple(attention), counts)


def _attention(node: ir.Node) -> Head | None:
    standard = node.domain == "" and node.op_type == "Attention"
    name = "" if standard else node.op_type
    if name not in MASK_INPUTS or (not standard and node.domain != "com.microsoft"):
        return None
    heads = _number(node, "q_num_heads", "num_heads") or _dim(node, 0)
    key_heads = _number(node, "kv_num_heads") or (_dim(node, 1) if standard else heads)
    causal = name == "GroupQueryAttention" or any(_number(node, key) for key in ("is_causal", "unidirectional"))
    masked = causal or any(_has(node, place) for place in MASK_INPUTS[name])
    past = all(_has(node, place) for place in PAST_INPUTS[name])
    return Head(heads, key_heads, masked, past)


def _others(node: ir.Node) -> Iterator[tuple[str, int]]:
    op = node.op_type
    if op in NORMS:
        yield NORMS[op], 1
    elif op == "RotaryEmbedding":
        yield "rotary", 1
    elif op == "GroupQueryAttention" and _number(node, "do_rotary"):
        yield "rotary", 2
    function = _function(node)
    if function is not None:
        yield f"activation {function}", 1


def _function(node: ir.Node) -> str | None:
    """Which activation a node computes by itself."""
    attributes = node.attributes
    if node.op_type == "Gelu":
        return "gelu_tanh" if "approximate" in attributes and attributes["approximate"].value == "tanh" else "gelu"
    if node.op_type in {"QuickGelu", "Swish"}:
        usual = 1.702 if node.op_type == "QuickGelu" else 1.0
        alpha = float(attributes["alpha"].value) if "alpha" in attributes else usual
        return "silu" if alpha == 1.0 else "quick_gelu"
    return FUNCTIONS.get(node.op_type)


def _number(node: ir.Node, *names: str) -> int:
    return next((int(node.attributes[name].value) for name in names if name in node.attributes), 0)


def _has(node: ir.Node, place: int) -> bool:
    return place < len(node.inputs) and node.inputs[place] is not None


def _dim(node: ir.Node, place: int) -> int:
    """The second dimension of an input of rank 4: its heads."""
    value = node.inputs[place]
    if value is None or value.shape is None or len(value.shape) != 4:
        return 0
    size = value.shape[1]
    return size if isinstance(size, int) else 0
