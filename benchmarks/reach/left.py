"""Why blocks were left in several nodes: what the passes of their kind said nearest to what remains of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import onnx_ir as ir

from benchmarks.reach.fused import nodes
from ortopt.graph.refusal import reason_of
from ortopt.observers import Observer
from ortopt.transformer import GraphTransformer

CORES = {
    "attention": ("Softmax",),
    "rotary": ("Neg",),
    "layer_norm": ("Sqrt", "Pow", "Reciprocal", "Rsqrt"),
    "rms_norm": ("Sqrt", "Pow", "Reciprocal", "Rsqrt"),
    "group_norm": ("InstanceNormalization",),
    "activation": ("Erf", "Tanh", "Sigmoid", "HardSigmoid", "Softplus"),
}
"""Ops that such a block cannot do without, and few other things have."""

PASSES = {
    "attention": ("attention",),
    "rotary": ("rotary",),
    "layer_norm": ("layer_norm",),
    "rms_norm": ("rms_norm",),
    "group_norm": ("group_norm",),
    "activation": ("gelu", "swish", "silu", "mish", "activation"),
}
"""What the names of the passes contain that make such blocks single ops."""

STEPS = 8
"""How far behind a core a pass may look at its block."""


class Refusals(Observer):
    """Keeps the last reason that each pass gave at each node."""

    listens_to_refusals = True
    decides = False

    def __init__(self) -> None:
        self.at: dict[ir.Node, dict[str, str]] = {}

    def begin(self) -> None:
        """Forget an earlier run."""
        self.at.clear()

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        """Record a reason."""
        self.at.setdefault(node, {})[transformer.name] = reason_of(reason).clause


def reasons(model: ir.Model, refusals: Refusals, kind: str) -> Counter[str]:
    """The reasons for what is left of blocks of a kind.

    Args:
        model: The result.
        refusals: Listened to the run.
        kind: One of `CORES`.

    Returns:
        Reasons with how many cores each concerns.
    """
    said: Counter[str] = Counter()
    for node in nodes(model):
        if node.op_type in CORES[kind] and not node.domain:
            reason = _nearest(node, refusals, kind)
            if reason is not None:
                said[reason] += 1
    return said


def _nearest(core: ir.Node, refusals: Refusals, kind: str) -> str | None:
    """What was said at the core, or at the first node behind it that a pass of the kind looked at."""
    waiting, seen = deque([(core, 0)]), {core}
    while waiting:
        node, steps = waiting.popleft()
        said = refusals.at.get(node, {})
        for name in (name for part in PASSES[kind] for name in sorted(said, key=len) if part in name):
            return f"{name}: {said[name]}"
        if steps == STEPS:
            continue
        for user in _users(node.outputs):
            if user not in seen:
                seen.add(user)
                waiting.append((user, steps + 1))
    return None


def _users(values: Iterable[ir.Value]) -> list[ir.Node]:
    return [use.node for value in values for use in value.uses()]
