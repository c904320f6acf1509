"""A table of costs from what was measured on which processor; and two tables side by side."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ortopt.analysis import costs
from ortopt.analysis.costs import HYSTERESIS, Cost, CostTable, Form, Verdict, in_sizes
from ortopt.measurement.costs import Case, Measurement
from ortopt.measurement.pairs import Speed

_SOURCE: Final = "measured"
_AT_ALL: Final[tuple[Mapping[str, tuple[int, float]], ...]] = ({},)

_CPU_INFO: Final = Path("/proc/cpuinfo")
_FAMILIES: Final = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"), ("sve", "SVE"), ("asimd", "NEON"))
"""Instructions that kernels are written for, the widest first, as Linux names them and as people do."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table that was measured.

    Attributes:
        cases: The form at the sizes that the row is about.
        at: The same sizes as ranges.
        verdict: Whether the form is faster.
        speed: The least and the greatest median.
    """

    cases: tuple[Case, ...]
    at: Mapping[str, tuple[int, float]]
    verdict: Verdict
    speed: tuple[float, float]

    @property
    def form(self) -> Form:
        """The form."""
        return self.cases[0].entry.form

    @property
    def sizes(self) -> str:
        """The sizes that were measured, in words."""
        return _sizes(self.cases)


def rows_of(cases: Sequence[Case], provider: str) -> list[Row]:
    """The rows that measurements of one form give: one for each range of sizes that the shipped table tells apart.

    Args:
        cases: The form at all its sizes.
        provider: The execution provider's full name.
    """
    return [_row(own, at) for at, own in by_range(cases, provider) if all(case.ratios for case in own)]


def by_range(cases: Sequence[Case], provider: str) -> list[tuple[Mapping[str, tuple[int, float]], list[Case]]]:
    """Cases of one form by the ranges of sizes that the shipped table tells apart, where there are any.

    Args:
        cases: The form at all its sizes.
        provider: The execution provider's full name.
    """
    form = cases[0].entry.form
    ranges = [cost.at for cost in costs.shipped().own if (cost.form, cost.provider) == (form, provider)] or _AT_ALL
    grouped = [(at, [case for case in cases if _is_within(case, at)]) for at in ranges]
    return [(at, own) for at, own in grouped if own]


def _is_within(case: Case, at: Mapping[str, tuple[int, float]]) -> bool:
    return all(low <= case.given[name] <= high for name, (low, high) in at.items() if name in case.given)


def _row(cases: Sequence[Case], at: Mapping[str, tuple[int, float]]) -> Row:
    speeds = [speed for case in cases if (speed := case.speed) is not None]
    medians = [speed.median for speed in speeds]
    return Row(tuple(cases), at, verdict_of(speeds), (min(medians), max(medians)))


def verdict_of(speeds: Sequence[Speed]) -> Verdict:
    """The verdict on measured speeds: what clearly loses anywhere loses; what is not clear anywhere is not known.

    Args:
        speeds: One for each of the sizes.
    """
    if any(speed.median < 1 - HYSTERESIS and speed.high < 1 for speed in speeds):
        return Verdict.LOSES
    if any(abs(speed.median - 1) > HYSTERESIS and speed.low <= 1 <= speed.high for speed in speeds):
        return Verdict.UNKNOWN
    return Verdict.PAYS if any(speed.median > 1 + HYSTERESIS for speed in speeds) else Verdict.NEUTRAL


def all_rows(measurement: Measurement) -> list[Row]:
    """The rows of all forms that were measured at each of their sizes.

    Args:
        measurement: What was measured.
    """
    return [row for own in by_form(measurement.cases) for row in rows_of(own, measurement.provider)]


def by_form(cases: Iterable[Case]) -> list[list[Case]]:
    """Cases by their forms, in order."""
    grouped: dict[int, list[Case]] = {}
    for case in cases:
        grouped.setdefault(id(case.entry), []).append(case)
    return list(grouped.values())


def as_file(measurement: Measurement, *, name: str, onnxruntime: str, processor: str) -> bytes:
    """The table that a measurement gives, as a file: a row a line; without forms that are not clear at some size.

    Args:
        measurement: What was measured.
        name: The table's name.
        onnxruntime: The version of ONNX Runtime.
        processor: The processor, in words.
    """
    threads = "one thread" if measurement.threads == 1 else f"{measurement.threads or 'all'} threads"
    clock = f"CPU time of {threads}" if measurement.threads == 1 else f"time with {threads}"
    source = f"ONNX Runtime {onnxruntime}, {clock} of {processor}, in turns, medians of ratios"
    unclear = {row.form for row in all_rows(measurement) if row.verdict is Verdict.UNKNOWN}
    rows = [_as_json(row, measurement.provider) for row in all_rows(measurement) if row.form not in unclear]
    head = {
        "name": name,
        "measured": {"onnxruntime": onnxruntime, "processor": processor, "threads": measurement.threads},
        "sources": {_SOURCE: source},
    }
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    return f'{text},\n "costs": [\n{lines}\n ]\n}}\n'.encode()


def _as_json(row: Row, provider: str) -> dict[str, Any]:
    named = key_as_json(row.form, row.at)
    at = {name: named.pop(name) for name in ("at",) if name in named}
    return {
        **named,
        "provider": provider,
        "verdict": row.verdict.value,
        "speed": [round(end, 2) for end in row.speed],
        "instead_of": row.cases[0].entry.instead_of,
        "sizes": row.sizes,
        **at,
        "source": _SOURCE,
        "cases": [_case(case) for case in row.cases],
    }


def key_as_json(form: Form, at: Mapping[str, tuple[int, float]]) -> dict[str, Any]:
    """What a row is about, as files of tables have it: ``op``, ``variant`` and ``at``, without what says nothing.

    Args:
        form: The form.
        at: The ranges of sizes.
    """
    variant = {"variant": form.variant} if form.variant else {}
    ranges = {name: [low, None if high == math.inf else high] for name, (low, high) in at.items()}
    return {"op": str(form._replace(variant="")), **variant, **({"at": ranges} if ranges else {})}


def _case(case: Case) -> dict[str, Any]:
    speed = case.speed
    assert speed is not None
    ends = {"low": round(speed.low, 3), "median": round(speed.median, 3), "high": round(speed.high, 3)}
    return {"sizes": dict(case.given), **ends, "seconds": float(f"{speed.seconds:.3g}"), "calls": len(case.ratios)}


def _sizes(cases: Sequence[Case]) -> str:
    """The least and the greatest of each size, in words."""
    names = dict.fromkeys(name for case in cases for name in case.given)
    ends = {name: [case.given[name] for case in cases if name in case.given] for name in names}
    return in_sizes({name: (min(numbers), max(numbers)) for name, numbers in ends.items()})


@dataclass(frozen=True, slots=True)
class Difference:
    """What two tables say of the same.

    Attributes:
        form: The form.
        provider: The execution provider's full name.
        at: The range of sizes.
        first: What the first table says; None where it has no row.
        second: What the second table says; None where it has no row.
    """

    form: Form
    provider: str
    at: Mapping[str, tuple[int, float]]
    first: Cost | None
    second: Cost | None

    @property
    def is_contrary(self) -> bool:
        """Whether both know, and say otherwise."""
        return self.first is not None and self.second is not None and self.first.verdict is not self.second.verdict


def differences(first: CostTable, second: CostTable) -> list[Difference]:
    """Where two tables have different verdicts, or one of them has none.

    Args:
        first: A table.
        second: Another one.
    """
    one, other = ({(cost.form, cost.provider, tuple(cost.at.items())): cost for cost in t.own} for t in (first, second))
    keys = list(dict.fromkeys((*one, *other)))
    every = [
        Difference(form, provider, dict(at), one.get(key), other.get(key))
        for key in keys
        for form, provider, at in [key]
    ]
    return [each for each in every if each.first is None or each.second is None or each.is_contrary]


def processor(info: Path = _CPU_INFO) -> str:
    """The processor's name and the family of its vector instructions, e.g. ``AMD EPYC (AVX-512)``.

    Args:
        info: What Linux says of processors; elsewhere there is no such file.
    """
    try:
        text = info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    rows = dict(reversed([_parts(line) for line in text.splitlines() if ":" in line]))
    flags = frozenset(rows.get("flags", rows.get("Features", "")).split())
    family = next((name for flag, name in _FAMILIES if flag in flags), "")
    name = rows.get("model name") or platform.machine()
    return f"{name} ({family})" if family else name


def _parts(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
