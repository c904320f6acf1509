"""What a caller can choose about the partition of a graph."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import onnx_ir as ir

from ortopt.analysis import providers as execution
from ortopt.analysis.kernels import CPU, Support
from ortopt.errors import UsageError

Policy: TypeAlias = Literal["cost", "literal"]
POLICIES: tuple[Policy, ...] = ("cost", "literal")
ARGUMENT_LIMIT = 128
"""How many runtime values a group may take and give by default; the limit of both fusers that ortopt follows."""

SMALL_CONSTANT_BYTES = 1024
"""Constants of at most so many bytes are copied into each group that uses them; larger ones are its weights."""

_OP: Final = re.compile(r"(?:[^\s:@,]+::)?[^\s:@,]+")

Predicate: TypeAlias = Callable[[ir.Node, str, Support | None], bool]
"""A user's own say: the node, a provider's name, how the tables say that it runs the node; whether it may have it."""


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """How to partition.

    Attributes:
        providers: Execution providers, the preferred one first: names, or a text as ``--provider`` takes it. The CPU
            provider is always the last resort, as it is in every session of ONNX Runtime.
        policy: ``cost`` weighs sessions and device changes (`ortopt.partition.cost`); ``literal`` follows ONNX
            Runtime's lazy-tensor fuser step by step (`ortopt.partition.lazy_tensor_policy`).
        argument_limit: How many runtime values a group may take and give in all; weights do not count.
        horizontal: Whether nodes that only share an operand may be in one group (``cost`` only).
        preparation: Whether nodes may be changed so that clusters grow (`ortopt.partition.preparation`).
        allow: If not empty, only these ops are grouped: ``Add``, ``com.microsoft::Gelu``, or for one provider
            ``Add@cuda``.
        deny: Ops that are not grouped, spelled the same.
        predicate: Asked last, about every node and provider.
    """

    providers: str | tuple[str, ...] = (CPU,)
    policy: Policy = "cost"
    argument_limit: int = ARGUMENT_LIMIT
    horizontal: bool = True
    preparation: bool = True
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    predicate: Predicate | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"the group policy must be {' or '.join(POLICIES)}, not {self.policy!r}")
        if self.argument_limit < 1:
            raise UsageError(f"the argument limit must be at least 1, not {self.argument_limit}")
        for entry in (*self.allow, *self.deny):
            op, at, provider = entry.partition("@")
            if _OP.fullmatch(op) is None:
                raise UsageError(f"{entry!r} names no op: they are spelled Add, com.microsoft::Gelu, Add@cuda")
            if at:
                execution.normalize(provider)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The providers that a node is offered to, in order, the CPU provider among them."""
        return tuple(dict.fromkeys((*execution.full_names(self.providers), CPU)))
