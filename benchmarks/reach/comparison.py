"""What was expected against what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.reach.fused import Fused, Head


@dataclass(frozen=True, slots=True)
class Share:
    """How many blocks of a kind are single ops.

    Attributes:
        expected: How many blocks the architecture has.
        found: How many of them are single ops; of attention, ops with the right number of query heads.
        whole: How many of those also have its key heads, its mask and its past inside.
        more: Single ops of the kind beyond those expected: a mistake of the expectation, or of the passes.
    """

    expected: int
    found: int
    whole: int
    more: int


def compare(blocks: Sequence[Mapping[str, Any]], fused: Fused) -> dict[str, Share]:
    """The share of each kind that the model has."""
    kinds = dict.fromkeys(str(block["kind"]) for block in blocks)
    return {kind: _attention(blocks, fused) if kind == "attention" else _counted(kind, blocks, fused) for kind in kinds}


def _attention(blocks: Sequence[Mapping[str, Any]], fused: Fused) -> Share:
    wanted = [head for block in blocks if block["kind"] == "attention" for head in _heads(block)]
    found = (Counter(head.heads for head in wanted) & Counter(head.heads for head in fused.attention)).total()
    whole = (Counter(wanted) & Counter(fused.attention)).total()
    return Share(len(wanted), found, whole, len(fused.attention) - found)


def _heads(block: Mapping[str, Any]) -> list[Head]:
    count = int(block["count"])

    def each(key: str, default: Any = None) -> list[int]:
        given = block.get(key, default)
        return list(given) if isinstance(given, list) else [int(given)] * count

    heads = each("heads")
    key_heads = each("kv_heads", heads)
    masked, past = bool(block.get("mask")), bool(block.get("past"))
    return [Head(q, kv, masked, past) for q, kv in zip(heads, key_heads, strict=True)]


def _counted(kind: str, blocks: Sequence[Mapping[str, Any]], fused: Fused) -> Share:
    wanted: Counter[str] = Counter()
    for block in blocks:
        if block["kind"] == kind:
            wanted[_label(block)] += int(block["count"])
    there = {label: fused.counts.get(label, 0) for label in wanted}
    found = sum(min(count, there[label]) for label, count in wanted.items())
    total = sum(count for label, count in fused.counts.items() if label.partition(" ")[0] == kind)
    return Share(wanted.total(), found, found, total - found)


def _label(block: Mapping[str, Any]) -> str:
    return f"{block['kind']} {block['function']}" if block["kind"] == "activation" else str(block["kind"])
