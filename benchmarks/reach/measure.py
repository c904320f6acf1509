"""One model under one setting: optimized, and compared with what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.reach.comparison import Share, compare
from benchmarks.reach.expectation import Expected
from benchmarks.reach.fused import Fused, fused
from benchmarks.reach.left import Refusals, reasons
from ortopt import optimize
from ortopt.errors import OrtoptError
from ortopt.serialization.load import load


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is optimized.

    Attributes:
        name: Its name in tables.
        providers: Execution providers, the preferred one first.
        arguments: Other arguments of `ortopt.optimize`.
    """

    name: str
    providers: tuple[str, ...]
    arguments: dict[str, Any] = field(default_factory=dict)


SETTINGS = (
    Setting("cpu all", ("cpu",), {"fusions": "all"}),
    Setting("cuda all", ("cuda", "cpu"), {"fusions": "all"}),
    Setting("cpu", ("cpu",)),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the blocks of one model.

    Attributes:
        model: The model.
        setting: The setting's name.
        shares: For each kind that it has, how many blocks are single ops.
        reasons: For each kind of which some are missing, the reasons and how many places each concerns.
        error: Why there is no result, if there is none.
    """

    model: Expected
    setting: str
    shares: dict[str, Share]
    reasons: dict[str, dict[str, int]]
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As data that json can write."""
        model = self.model
        facts = {"model": model.name, "family": model.family, "exporter": model.exporter, "opset": model.opset}
        shares = {kind: asdict(share) for kind, share in self.shares.items()}
        facts |= {"variant": model.variant, "set_aside": model.set_aside, "setting": self.setting}
        return {**facts, "shares": shares, "reasons": self.reasons, "error": self.error}


def before(model: Expected) -> Outcome:
    """What the exporter itself has made single ops."""
    try:
        return Outcome(model, "original", compare(model.blocks, fused(load(model.path))), {})
    except OrtoptError as error:
        return _failed(model, "original", error)


def measure(model: Expected, setting: Setting) -> Outcome:
    """Optimize a model at level 3, unverified, and compare."""
    listener = Refusals()
    try:
        result = optimize(
            model.path, providers=setting.providers, verify=False, observers=[listener], **setting.arguments
        )
    except OrtoptError as error:
        return _failed(model, setting.name, error)
    shares = compare(model.blocks, fused(result.model))
    missing = [kind for kind, share in shares.items() if share.found < share.expected]
    said = {kind: dict(reasons(result.model, listener, kind).most_common()) for kind in missing}
    return Outcome(model, setting.name, shares, said)


def _failed(model: Expected, setting: str, error: OrtoptError) -> Outcome:
    return Outcome(model, setting, compare(model.blocks, Fused((), {})), {}, str(error))


def total(outcomes: Sequence[Outcome], kind: str) -> Share:
    """The sum over models."""
    shares = [one.shares[kind] for one in outcomes if kind in one.shares]
    return Share(
        sum(one.expected for one in shares),
        sum(one.found for one in shares),
        sum(one.whole for one in shares),
        sum(one.more for one in shares),
    )
