"""Which form of a computation is faster on a provider: verdicts of measurements, from a table that ships with ortopt.

A form is an op as its kernel sees it. What it costs is stated relative to the nodes that it stands for: a speed of 0.5
is half as fast as they are. The table (``data/costs.json``) has one row a form, provider and range of sizes; where it
has none, nobody has measured, and the answer is None. `ortopt.fusions` decides what to do about it.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import onnx_ir as ir

from ortopt.graph.facts import dims_of

HYSTERESIS: Final = 0.03
"""By how much a form must be faster to be called so: a form that wins by less loses to the simpler graph."""

_SHIPPED: Final = Path(__file__).with_name("data") / "costs.json"

Sizes = Mapping[str, int]
"""Sizes of a computation by name (``rows``); what is left out is not known."""


class Verdict(enum.Enum):
    """Whether a form is faster than the nodes that it stands for."""

    PAYS = "pays"
    NEUTRAL = "neutral"
    LOSES = "loses"
    UNKNOWN = "unknown"


_MOST_CAUTIOUS_FIRST: Final = (Verdict.LOSES, Verdict.UNKNOWN, Verdict.NEUTRAL, Verdict.PAYS)


class Form(NamedTuple):
    """An op as its kernel sees it.

    Attributes:
        domain: The op's domain, ``""`` for ai.onnx.
        op_type: The op's type.
        variant: How it is used, where its kernel's speed depends on that (``with bias``); empty for the usual form.
    """

    domain: str
    op_type: str
    variant: str = ""

    def __str__(self) -> str:
        op = f"{self.domain}::{self.op_type}" if self.domain else self.op_type
        return f"{op} {self.variant}" if self.variant else op


@dataclass(frozen=True, slots=True)
class Cost:
    """What is known of a form on a provider: a row of the table.

    Attributes:
        form: The form.
        provider: The execution provider's full name.
        verdict: Whether it is faster.
        speed: The least and the greatest speed that was measured, relative to `instead_of`; None if nobody has.
        instead_of: The nodes that it stands for, in words.
        sizes: The sizes at which this holds, in words; empty for all that were measured.
        at: The same as the least and greatest value of named sizes (`Sizes`); what is left out may be anything.
        source: Who says so, and how it was measured.
    """

    form: Form
    provider: str
    verdict: Verdict
    speed: tuple[float, float] | None
    instead_of: str
    sizes: str
    at: Mapping[str, tuple[int, float]]
    source: str

    def holds_at(self, sizes: Sizes) -> bool:
        """Whether it may be about these sizes."""
        return all(low <= sizes[name] <= high for name, (low, high) in self.at.items() if name in sizes)


class CostTable:
    """Costs of forms.

    Args:
        name: Its name, for reports.
        digest: The hash of its content.
        costs: Its rows.
    """

    def __init__(self, name: str, digest: str, costs: Iterable[Cost]) -> None:
        self.name = name
        self.digest = digest
        self.costs = tuple(costs)
        self._rows: dict[tuple[Form, str], list[Cost]] = {}
        self._of_op: dict[tuple[str, str, str], list[Cost]] = {}
        for cost in self.costs:
            self._rows.setdefault((cost.form, cost.provider), []).append(cost)
            self._of_op.setdefault((cost.form.domain, cost.form.op_type, cost.provider), []).append(cost)

    def find(self, form: Form, provider: str, sizes: Sizes | None = None) -> Cost | None:
        """What a form costs on a provider, or None where the table has no row.

        A variant without a row costs what the usual form does. Of several rows that may be about the sizes, the most
        cautious counts: a form must not lose at any of them.

        Args:
            form: The form.
            provider: The execution provider's full name.
            sizes: The sizes that are known.
        """
        rows = self._rows.get((form, provider)) or self._rows.get((form._replace(variant=""), provider), [])
        fitting = [cost for cost in rows if cost.holds_at(sizes or {})] or rows
        return min(fitting, key=lambda cost: _MOST_CAUTIOUS_FIRST.index(cost.verdict), default=None)

    def loser(self, ops: Iterable[tuple[str, str]], provider: str) -> Cost | None:
        """A row of the first of several ops, if each of them is known to lose in all its forms and at all sizes.

        Args:
            ops: The ops, as (domain, op type).
            provider: The execution provider's full name.
        """
        rows = [self._of_op.get((domain, op_type, provider), []) for domain, op_type in ops]
        losing = all(each and all(cost.verdict is Verdict.LOSES for cost in each) for each in rows)
        return rows[0][0] if rows and losing else None

    def fastest(self, forms: Sequence[Form], provider: str, sizes: Sizes | None = None) -> Form | None:
        """The fastest of several forms of one computation, or None where that is not known.

        Args:
            forms: The forms, the simplest first: another one wins only if it is faster by more than `HYSTERESIS`.
            provider: The execution provider's full name.
            sizes: The sizes that are known.
        """
        best: tuple[Form, tuple[float, float]] | None = None
        for form in forms:
            cost = self.find(form, provider, sizes)
            if cost is None or cost.speed is None:
                return None
            order = 0 if best is None else _compare(cost.speed, best[1])
            if order is None:
                return None
            if best is None or order > 0:
                best = form, cost.speed
        return None if best is None else best[0]


def _compare(speed: tuple[float, float], other: tuple[float, float]) -> int | None:
    """1 if a speed is clearly greater, -1 if clearly less, 0 if neither at any size, None if that depends on sizes."""
    ratios = [ours / theirs for ours, theirs in zip(speed, other, strict=True)]
    greater = any(ratio > 1 + HYSTERESIS for ratio in ratios)
    less = any(ratio < 1 - HYSTERESIS for ratio in ratios)
    return None if greater and less else greater - less


def verdict_of(speed: tuple[float, float]) -> Verdict:
    """The verdict on a measured range of speeds: what loses anywhere loses."""
    low, high = speed
    if low < 1 - HYSTERESIS:
        return Verdict.LOSES
    return Verdict.PAYS if high > 1 + HYSTERESIS else Verdict.NEUTRAL


def _given(node: ir.Node, index: int) -> bool:
    return len(node.inputs) > index and node.inputs[index] is not None


def _has(node: ir.Node, *names: str) -> bool:
    """Whether an attribute that is an integer may be other than 0."""
    found = (node.attributes.get(name) for name in names)
    return any(one is not None and (one.is_ref() or one.value != 0) for one in found)


_MAX_MOVES: Final = 4


def _is_repeated(node: ir.Node, index: int) -> bool:
    """Whether an operand has heads that an Expand or a Tile has repeated, and what follows it only moves."""
    value = node.inputs[index] if _given(node, index) else None
    for _ in range(_MAX_MOVES):
        producer = None if value is None else value.producer()
        if producer is None or producer.op_type not in {"Reshape", "Transpose", "Mul", "Div"}:
            return producer is not None and producer.op_type in {"Expand", "Tile"}
        value = producer.inputs[0]
    return False


def _is_signed(*indices: int) -> Callable[[ir.Node], bool]:
    """The question whether an operand is of int8."""

    def asked(node: ir.Node) -> bool:
        values = (node.inputs[index] if _given(node, index) else None for index in indices)
        return any(value is not None and value.dtype == ir.DataType.INT8 for value in values)

    return asked


_SIGNED: Final = "of signed integers"

_VARIANTS: Final[Mapping[tuple[str, str], tuple[tuple[str, Callable[[ir.Node], bool]], ...]]] = {
    ("", "Attention"): (("with heads first", lambda node: not _has(node, "q_num_heads")),),
    ("", "QLinearConv"): ((_SIGNED, _is_signed(0)),),
    ("", "QLinearMatMul"): ((_SIGNED, _is_signed(0)),),
    **{
        ("com.microsoft", f"QLinear{op}"): ((_SIGNED, _is_signed(0, 1)),)
        for op in (
            *("Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid", "Softmax", "Where"),
        )
    },
    ("com.microsoft", "MatMulIntegerToFloat"): ((_SIGNED, _is_signed(0)),),
    ("com.microsoft", "QGemm"): ((_SIGNED, _is_signed(0)),),
    ("com.microsoft", "FastGelu"): (("with bias", lambda node: _given(node, 1)),),
    ("com.microsoft", "FusedConv"): (("with a sum", lambda node: _given(node, 3)),),
    ("com.microsoft", "FusedMatMul"): (
        ("transBatch", lambda node: _has(node, "transBatchA", "transBatchB")),
        ("transA", lambda node: _has(node, "transA")),
    ),
    ("com.microsoft", "MultiHeadAttention"): (
        ("with repeated heads", lambda node: _is_repeated(node, 1)),
        ("with bias", lambda node: _given(node, 3)),
    ),
}
"""Variants of ops whose kernels differ in speed, each with the question whether a node is one."""


def form_of(node: ir.Node) -> Form:
    """The form that a node has."""
    variants = _VARIANTS.get((node.domain, node.op_type), ())
    return Form(node.domain, node.op_type, next((name for name, holds in variants if holds(node)), ""))


def sizes_of(node: ir.Node) -> Sizes:
    """What is known of a node's sizes: ``rows`` is the product of its first operand's dimensions but the last."""
    value = node.inputs[0] if node.inputs else None
    leading = None if value is None else dims_of(value)
    if not leading:
        return {}
    known = [dim for dim in leading[:-1] if isinstance(dim, int)]
    return {"rows": math.prod(known)} if len(known) == len(leading) - 1 else {}


def read(content: bytes) -> CostTable:
    """The table that a file holds.

    Args:
        content: The file's bytes.
    """
    data = json.loads(content)
    costs = [_cost(row, data["sources"]) for row in data["costs"]]
    return CostTable(data["name"], hashlib.sha256(content).hexdigest(), costs)


def _cost(row: Mapping[str, Any], sources: Mapping[str, str]) -> Cost:
    domain, _, op_type = row["op"].rpartition("::")
    speed = row.get("speed")
    return Cost(
        Form(domain, op_type, row.get("variant", "")),
        row["provider"],
        Verdict(row["verdict"]),
        None if speed is None else (speed[0], speed[1]),
        row["instead_of"],
        row.get("sizes", ""),
        {name: (low, math.inf if high is None else high) for name, (low, high) in row.get("at", {}).items()},
        sources[row["source"]],
    )


@functools.cache
def shipped() -> CostTable:
    """The table that ships with ortopt."""
    return read(_SHIPPED.read_bytes())


__all__ = [
    "HYSTERESIS",
    "Cost",
    "CostTable",
    "Form",
    "Sizes",
    "Verdict",
    "form_of",
    "read",
    "shipped",
    "sizes_of",
    "verdict_of",
]
