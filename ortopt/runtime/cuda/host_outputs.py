"""Outputs that kernels of the CUDA provider leave in the host's memory, plain or pinned, though they run on the device.

So say the definitions of the kernels (``OutputMemoryType``) in ONNX Runtime's sources; docs/runtime.md says which. A
session of 1.23 and newer tells where its outputs are; this says it before there is a session: such a result stays where
it is, as most of its readers want it there (shapes, lengths) or take it away (what a search has found).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import onnx

from ortopt.semantics.domains import MICROSOFT

_SEARCH: Final = frozenset({0, 1})
HOST_OUTPUTS: Final[dict[tuple[str, str], frozenset[int]]] = {
    ("", "Shape"): frozenset({0}),
    ("", "Size"): frozenset({0}),
    (MICROSOFT, "BeamSearch"): _SEARCH,
    (MICROSOFT, "GreedySearch"): frozenset({0}),
    (MICROSOFT, "RemovePadding"): frozenset({3}),  # the largest number of tokens
    (MICROSOFT, "Sampling"): _SEARCH,
    (MICROSOFT, "WhisperBeamSearch"): _SEARCH,
}
"""The positions of the outputs, by domain and op."""


def in_host_memory(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The names of the values that some nodes leave in the host's memory, where they run on CUDA."""
    names: set[str] = set()
    for node in nodes:
        positions = HOST_OUTPUTS.get((node.domain.removeprefix("ai.onnx"), node.op_type), frozenset())
        names.update(name for i, name in enumerate(node.output) if i in positions)
    return names


__all__ = ["HOST_OUTPUTS", "in_host_memory"]
