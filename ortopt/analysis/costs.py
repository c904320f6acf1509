"""Which form of a computation is faster on a provider: verdicts of measurements, from a table that ships with ortopt.

A form is an op as its kernel sees it. What it costs is stated relative to the nodes that it stands for: a speed of 0.5
is half as fast as they are. The table (``data/costs.json``) has one row a form, provider and range of sizes; where it
has none, nobody has measured, and the answer is None. What other processors, and several threads, say of the same rows
stands in tables of their own (``data/costs.*.json``) and becomes a column each: a form that loses on one of them loses.
`ortopt.framework.fusions` decides what to do about it.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import onnx_ir as ir
from msgspec import Struct, field, structs

from ortopt.analysis.blocked_layout import is_blocked_convolution
from ortopt.analysis.blocked_values import PARTS, fills_most, is_in_blocks
from ortopt.analysis.node_sizes import Extent
from ortopt.options import MEASURED_TARGETS, Target
from ortopt.semantics.domains import MICROSOFT

HYSTERESIS: Final = 0.03
"""By how much a form must be faster to be called so: a form that wins by less loses to the simpler graph."""

_SHIPPED: Final = Path(__file__).with_name("data") / "costs.json"
_ON_OTHER_PROCESSORS: Final = (_SHIPPED.with_name("costs.avx2.json"),)
WITH_THREADS: Final = _SHIPPED.with_name("costs.threads.json")

Sizes = Mapping[str, int | Extent]
"""Sizes of a computation by name (see `ortopt.analysis.node_sizes`), each a number or the least and the greatest value;
what is left out is not known."""

Places = Sequence[Sizes]
"""The sizes at which a question is asked: a form must not lose at any of them."""

_ANYWHERE: Final[Places] = ({},)


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


class Cost(Struct, frozen=True):
    """What is known of a form on a provider: a row of the table.

    Attributes:
        form: The form.
        provider: The execution provider's full name.
        verdict: Whether it is faster.
        speed: The least and the greatest speed that was measured, relative to `instead_of`; None if nobody has. Where
            several kinds of processors were measured, that of all of them.
        instead_of: The nodes that it stands for, in words.
        sizes: The sizes at which this holds, in words; empty for all that were measured.
        at: The same as the least and greatest value of named sizes (`Sizes`); what is left out may be anything.
        source: Who says so, and how it was measured.
        speeds: The speed on each kind of processor (`Circumstances.kernels`), where several were measured.
        elsewhere: Of an answer about sizes that the table does not know, those that it knows, in words.
        releases: Older releases of ONNX Runtime that keep the form from being taken, in words: it loses there, or was
            not measured; empty where there are none (`ortopt.analysis.cost_tables`).
    """

    form: Form
    provider: str
    verdict: Verdict
    speed: tuple[float, float] | None
    instead_of: str
    sizes: str
    at: Mapping[str, tuple[int, float]]
    source: str
    speeds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    elsewhere: str = ""
    releases: str = ""

    @property
    def key(self) -> tuple[Form, str, tuple[tuple[str, tuple[int, float]], ...]]:
        """What it is about: no two rows of a table are about the same."""
        return self.form, self.provider, tuple(self.at.items())

    def holds_at(self, sizes: Sizes) -> bool:
        """Whether it may be about these sizes."""
        return all(_meet(extent, sizes[name]) for name, extent in self.at.items() if name in sizes)


def _meet(extent: tuple[int, float], size: int | Extent) -> bool:
    """Whether a size may be in a range."""
    low, high = (size, size) if isinstance(size, int) else size
    return low <= extent[1] and extent[0] <= high


class Circumstances(Struct, frozen=True):
    """With what a table was measured; empty texts where it does not say.

    Attributes:
        onnxruntime: The version of ONNX Runtime.
        processor: The processor, and which of its instructions count.
        threads: Threads within an op.
        kernels: The instructions that the kernels were written for: the name of a column beside other processors.
    """

    onnxruntime: str = ""
    processor: str = ""
    threads: int = 1
    kernels: str = ""


class CostTable:
    """Costs of forms.

    Args:
        name: Its name, for reports.
        digest: The hash of its content, or what computes it when it is first asked.
        costs: Its rows.
        measured: With what it was measured.
        over: The table that it is laid over: what that one says of forms, or of ranges of sizes, that this one does not
            know counts.
        columns: The tables of other processors that its rows hold on as well (`on_all_processors`).
    """

    def __init__(
        self,
        name: str,
        digest: str | Callable[[], str],
        costs: Iterable[Cost],
        measured: Circumstances | None = None,
        over: CostTable | None = None,
        columns: Sequence[CostTable] = (),
    ) -> None:
        self.name = name
        self._digest = digest
        self.own = tuple(costs)
        self.measured = measured or Circumstances()
        self.over = over
        self.columns = tuple(columns)
        known = {cost.key for cost in self.own}
        below = () if over is None else (cost for cost in over.costs if not _is_known(cost, known))
        self.costs: tuple[Cost, ...] = (*self.own, *below)
        self._rows: dict[tuple[Form, str], list[Cost]] = {}
        self._of_op: dict[tuple[str, str, str], list[Cost]] = {}
        for cost in self.costs:
            self._rows.setdefault((cost.form, cost.provider), []).append(cost)
            self._of_op.setdefault((cost.form.domain, cost.form.op_type, cost.provider), []).append(cost)

    @property
    def digest(self) -> str:
        """The hash of its content."""
        if not isinstance(self._digest, str):
            self._digest = self._digest()
        return self._digest

    def find(self, form: Form, provider: str, places: Places = _ANYWHERE) -> Cost | None:
        """What a form costs on a provider, or None where the table has no row.

        A variant without a row costs what the usual form does. Of all rows that may be about the sizes, the most
        cautious counts: a form must not lose at any of them. Where the table knows other sizes only, a form that loses
        somewhere is taken to lose, and any other is not known.

        Args:
            form: The form.
            provider: The execution provider's full name.
            places: The sizes at which it is asked for.
        """
        rows = self._rows.get((form, provider)) or self._rows.get((form._replace(variant=""), provider), [])
        answers = [answer for sizes in places if (answer := _most_cautious(rows, sizes)) is not None]
        return min(answers, key=_caution, default=None)

    def pays_from(self, form: Form, provider: str, size: str) -> int | None:
        """The least value of a size from which on a form pays on a provider, or None where the table has no such row.

        Args:
            form: The form.
            provider: The execution provider's full name.
            size: The size, by its name.
        """
        rows = self._rows.get((form, provider), ())
        return next((cost.at[size][0] for cost in rows if cost.verdict is Verdict.PAYS and size in cost.at), None)

    def loser(self, ops: Iterable[tuple[str, str]], provider: str) -> Cost | None:
        """A row of the first of several ops, if each of them is known to lose in all its forms and at all sizes.

        Args:
            ops: The ops, as (domain, op type).
            provider: The execution provider's full name.
        """
        rows = [self._of_op.get((domain, op_type, provider), []) for domain, op_type in ops]
        losing = all(each and all(cost.verdict is Verdict.LOSES for cost in each) for each in rows)
        return rows[0][0] if rows and losing else None

    def fastest(self, forms: Sequence[Form], provider: str, places: Places = _ANYWHERE) -> Form | None:
        """The fastest of several forms of one computation, or None where that is not known.

        Args:
            forms: The forms, the simplest first: another one wins only if it is faster by more than `HYSTERESIS`
                somewhere, and slower nowhere.
            provider: The execution provider's full name.
            places: The sizes at which it is asked for.
        """
        best: tuple[Form, tuple[float, ...]] | None = None
        for form in forms:
            if self._loses_elsewhere(form, provider, places):
                continue
            speed = self._speed(form, provider, places)
            if speed is None:
                return None
            order = 0 if best is None else _compare(speed, best[1])
            if order is None:
                return None
            if best is None or order > 0:
                best = form, speed
        return None if best is None else best[0]

    def _loses_elsewhere(self, form: Form, provider: str, places: Places) -> bool:
        """Whether a form loses at other sizes than those asked for, which nobody has measured."""
        cost = self.find(form, provider, places)
        return cost is not None and cost.verdict is Verdict.LOSES and bool(cost.elsewhere)

    def _speed(self, form: Form, provider: str, places: Places) -> tuple[float, ...] | None:
        """The least and the greatest speed of a form at each of several places."""
        costs = [self.find(form, provider, [sizes]) for sizes in places]
        speeds = [cost.speed for cost in costs if cost is not None and cost.speed is not None]
        return tuple(end for speed in speeds for end in speed) if speeds and len(speeds) == len(costs) else None


def _is_known(cost: Cost, known: Collection[tuple[Form, str, tuple[tuple[str, tuple[int, float]], ...]]]) -> bool:
    """Whether a table has a row about the same form and sizes, or about all sizes."""
    return any((cost.form, cost.provider, at) in known for at in ((), tuple(cost.at.items())))


def _most_cautious(rows: Sequence[Cost], sizes: Sizes) -> Cost | None:
    """The row that counts at some sizes."""
    fitting = [cost for cost in rows if cost.holds_at(sizes)]
    nearest = min(fitting or rows, key=_caution, default=None)
    if fitting or nearest is None:
        return nearest
    elsewhere = " or ".join(in_sizes(cost.at) for cost in rows)
    if nearest.verdict is Verdict.LOSES:
        return structs.replace(nearest, speed=None, speeds={}, elsewhere=elsewhere, releases="")
    return structs.replace(nearest, verdict=Verdict.UNKNOWN, speed=None, speeds={}, elsewhere=elsewhere)


def _caution(cost: Cost) -> int:
    return _MOST_CAUTIOUS_FIRST.index(cost.verdict)


def _compare(speed: tuple[float, ...], other: tuple[float, ...]) -> int | None:
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


def on_all_processors(table: CostTable, others: Sequence[CostTable]) -> CostTable:
    """A table whose rows hold on other processors as well: of each row, the speeds of all; it loses where one does.

    Args:
        table: The table.
        others: What was measured of the same rows elsewhere, on other processors, with several threads or with other
            releases of ONNX Runtime; each says which kernels it is about.
    """
    rows = [{cost.key: cost for cost in other.own if cost.speed is not None or cost.releases} for other in others]
    several = {other.measured.kernels for other in others if other.measured.threads > table.measured.threads}
    costs = []
    for cost in table.own:
        columns = {
            other.measured.kernels: row[cost.key]
            for other, row in zip(others, rows, strict=True)
            if cost.key in row and (cost.speed or row[cost.key].releases)
        }
        costs.append(_on_all(cost, {table.measured.kernels: cost, **columns}, several) if columns else cost)

    def digest() -> str:
        digests = "".join((table.digest, *(other.digest for other in others)))
        return hashlib.sha256(digests.encode()).hexdigest() if others else table.digest

    return CostTable(table.name, digest, costs, table.measured, columns=others)


def _on_all(cost: Cost, columns: Mapping[str, Cost], several: Collection[str]) -> Cost:
    """A row with the speeds of all processors, and its own verdict unless another one's is against the form.

    What several threads gain is told in their column; it is no speed of the row unless the form loses by them.
    """
    speeds = {name: one.speed for name, one in columns.items() if one.speed is not None}
    verdicts = {one.verdict for one in columns.values()}
    worst = next((one for one in (Verdict.LOSES, Verdict.UNKNOWN) if one in verdicts), cost.verdict)
    counted = [speed for name, speed in speeds.items() if name not in several or columns[name].verdict is Verdict.LOSES]
    ends = (min(low for low, _ in counted), max(high for _, high in counted)) if counted else None
    releases = next((one.releases for one in columns.values() if one.verdict is worst), "")
    return structs.replace(cost, verdict=worst, speed=ends, speeds=speeds, releases=releases)


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


def _ends_sum_in_blocks(node: ir.Node) -> bool:
    """Whether a sum of convolutions in blocks has an activation that ONNX Runtime itself adds to no sum."""
    activation, summand = node.attributes.get("activation"), node.inputs[3]
    if activation is None or activation.as_string() not in PARTS or summand is None:
        return False
    channels = None if node.inputs[1] is None or (shape := node.inputs[1].shape) is None else shape[0]
    fills = isinstance(channels, int) and fills_most(channels)
    return fills and is_blocked_convolution(node) and is_in_blocks(summand)


_SIGNED: Final = "of signed integers"

_VARIANTS: Final[Mapping[tuple[str, str], tuple[tuple[str, Callable[[ir.Node], bool]], ...]]] = {
    ("", "Attention"): (
        ("with capped scores", lambda node: _has(node, "softcap")),
        ("with heads first", lambda node: not _has(node, "q_num_heads")),
    ),
    ("", "QLinearConv"): ((_SIGNED, _is_signed(0)),),
    ("", "QLinearMatMul"): ((_SIGNED, _is_signed(0)),),
    **{
        (MICROSOFT, f"QLinear{op}"): ((_SIGNED, _is_signed(0, 1)),)
        for op in (
            *("Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid", "Softmax", "Where"),
        )
    },
    (MICROSOFT, "MatMulIntegerToFloat"): ((_SIGNED, _is_signed(0)),),
    (MICROSOFT, "QGemm"): ((_SIGNED, _is_signed(0)),),
    (MICROSOFT, "FastGelu"): (("with bias", lambda node: _given(node, 1)),),
    (MICROSOFT, "FusedConv"): (
        ("with a sum and an activation in blocks", lambda node: _given(node, 3) and _ends_sum_in_blocks(node)),
        ("with a sum", lambda node: _given(node, 3)),
    ),
    (MICROSOFT, "FusedMatMul"): (
        ("transBatch", lambda node: _has(node, "transBatchA", "transBatchB")),
        ("transA", lambda node: _has(node, "transA")),
    ),
    (MICROSOFT, "MultiHeadAttention"): (
        ("with repeated heads", lambda node: _is_repeated(node, 1)),
        ("with bias", lambda node: _given(node, 3)),
    ),
}
"""Variants of ops whose kernels differ in speed, each with the question whether a node is one."""


def form_of(node: ir.Node) -> Form:
    """The form that a node has."""
    variants = _VARIANTS.get((node.domain, node.op_type), ())
    return Form(node.domain, node.op_type, next((name for name, holds in variants if holds(node)), ""))


def read(content: bytes) -> CostTable:
    """The table that a file holds.

    Args:
        content: The file's bytes.
    """
    data = json.loads(content)
    costs = [_cost(row, data["sources"]) for row in data["costs"]]
    measured = data.get("measured", {})
    circumstances = Circumstances(
        measured.get("onnxruntime", ""),
        measured.get("processor", ""),
        measured.get("threads", 1),
        measured.get("kernels", ""),
    )
    return CostTable(data["name"], lambda: hashlib.sha256(content).hexdigest(), costs, circumstances)


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


def in_sizes(at: Mapping[str, tuple[int, float]]) -> str:
    """Ranges of sizes for people, e.g. ``rows 2 or more, past 0 to 128``.

    Args:
        at: The least and the greatest value of each; a greatest value may be infinite.
    """
    return ", ".join(f"{name} {_range(low, high)}" for name, (low, high) in at.items())


def _range(low: int, high: float) -> str:
    if low == high:
        return f"{low}"
    return f"{low} or more" if high == math.inf else f"{low} to {high:.0f}"


@functools.cache
def of_processors() -> tuple[CostTable, ...]:
    """The tables that ship with ortopt, one for each kind of processors that was measured."""
    return tuple(read(path.read_bytes()) for path in (_SHIPPED, *_ON_OTHER_PROCESSORS))


@functools.cache
def with_threads() -> CostTable:
    """What rows of the table that ships cost with several threads: measured with two, estimated for eight."""
    return read(WITH_THREADS.read_bytes())


@functools.cache
def of_target(target: Target) -> CostTable | None:
    """What rows of the table that ships cost on another runtime; None where that was not measured.

    Args:
        target: The target that is the runtime's.
    """
    if target is Target.ORT or target not in MEASURED_TARGETS:
        return None
    first, *rest = paths_of(target)
    return on_all_processors(read(first.read_bytes()), [read(path.read_bytes()) for path in rest])


def paths_of(target: Target) -> tuple[Path, ...]:
    """The files that have what rows cost on another runtime, one for each kind of processors with kernels of its own.

    Args:
        target: The target that is the runtime's. WebAssembly has the same vectors on all processors.

    Returns:
        First that of processors with AVX-512, as of the table that ships: what is neutral there stays so.
    """
    kinds = ("",) if target is Target.WEB else ("", ".avx2")
    return tuple(_SHIPPED.with_name(f"costs.{target.value}{kind}.json") for kind in kinds)


@functools.cache
def shipped() -> CostTable:
    """The table that ships with ortopt, with a column for each other kind of processors, and for several threads."""
    table, *others = of_processors()
    return on_all_processors(table, [*others, with_threads()])
