"""What an architecture is: a configuration, inputs, and the blocks that its authors put in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Block = dict[str, Any]
"""Blocks of a kind: `kind` and `count`; heads, kv_heads, mask and past of attentions, the function of activations."""

_SEEN_FIRST = """
albert bart bert bloom clip clip_vision_model convnext deberta-v2 detr dinov2 distilbert electra gemma gpt2 gpt_neox
llama mistral mixtral opt phi phi3 qwen2 roberta sam swin t5 vit wav2vec2 whisper xlm
"""
SEEN_FIRST = frozenset(_SEEN_FIRST.split())
"""Architectures that passes were written against, those of the zoo among them: never set aside."""


@dataclass(frozen=True)
class Architecture:
    """A small model of one architecture.

    Attributes:
        name: Name in file names; a name behind a hyphen tells apart what is made of one architecture.
        config: Arguments of its configuration, small.
        inputs: The kind of inputs, a key of `benchmarks.exports.inputs.INPUTS`.
        blocks: What it has, from its paper and configuration.
        model_type: What Hugging Face calls it; the name by default.
        loader: The class that makes it of a configuration: one of transformers' (``AutoModel``) or diffusers'.
        part: Attribute that is exported instead of the whole model.
        sizes: Sizes that inputs want, beyond what their kind says.
        ways: The exporters that can write it, of ``ts`` and ``dynamo``.
    """

    name: str
    config: Mapping[str, Any]
    inputs: str
    blocks: tuple[Block, ...]
    model_type: str = ""
    loader: str = "AutoModel"
    part: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    ways: tuple[str, ...] = ("ts", "dynamo")

    @property
    def set_aside(self) -> bool:
        """Whether no pass may be written against it: chosen by a hash of the name, so that nobody chooses."""
        return is_set_aside(self.name)


def is_set_aside(name: str) -> bool:
    """Whether the architecture of this name is set aside; its variants go with it."""
    stem = name.partition("-")[0]
    return stem not in SEEN_FIRST and hashlib.sha256(stem.encode()).digest()[0] % 2 == 0


def attention(
    count: int, heads: int | list[int] = 4, *, kv: int | None = None, mask: str = "", past: bool = False
) -> Block:
    """Attention blocks.

    Args:
        count: How many.
        heads: Heads of the queries; a list where blocks differ.
        kv: Heads of keys and values; as many as queries have by default.
        mask: What is added to or taken from the scores, by words: causal padding window bias alibi cap.
        past: Whether keys and values of earlier calls are read, and those of this one given.
    """
    return {"kind": "attention", "count": count, "heads": heads, "kv_heads": kv or heads, "mask": mask, "past": past}


def rotary(count: int, *, interleaved: bool = False) -> Block:
    """Rotary embeddings: one for the queries of a layer, one for its keys."""
    return {"kind": "rotary", "count": count, "interleaved": interleaved}


def layer_norm(count: int) -> Block:
    """Layer normalizations, with or without weights."""
    return {"kind": "layer_norm", "count": count}


def rms_norm(count: int) -> Block:
    """Root mean square normalizations."""
    return {"kind": "rms_norm", "count": count}


def group_norm(count: int) -> Block:
    """Group normalizations."""
    return {"kind": "group_norm", "count": count}


def activation(count: int, function: str) -> Block:
    """Activations that are several nodes: gelu, gelu_tanh, quick_gelu, silu, hard_swish, mish."""
    return {"kind": "activation", "count": count, "function": function}
