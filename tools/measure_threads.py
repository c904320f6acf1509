"""Refresh ``costs.threads.json``: what the forms of the shipped table cost with several threads.

::

    python -m tools.measure_threads --seconds 400
    python -m tools.measure_threads --seconds 30 --forms "Conv of opset 22"

Every form is measured with one thread and with two, as ``ortopt costs measure`` does.

What two threads gain says how much of the time they do not share, and so what eight would take (Amdahl, Validity of the
single processor approach, 1967). Twice the error of the measurement is in that, and small kernels take as long as it
takes to hand out their work: so it counts for what takes `ENOUGH_SECONDS` alone, and only where a form would be
`CLEARLY_SLOWER` at each size of a row. Rows of the forms that are measured are replaced, others stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ortopt.analysis import costs, releases
from ortopt.analysis.costs import HYSTERESIS, Verdict
from ortopt.analysis.providers import CPU
from ortopt.measurement import cost_tables as tables
from ortopt.measurement.costs import Case, measure
from ortopt.measurement.forms.catalog import ENTRIES
from ortopt.measurement.forms.entry import Entry
from ortopt.measurement.pairs import Speed
from tools.measure_releases import Speeds, speeds_of

MANY: Final = 8
"""Threads of the estimate."""

ENOUGH_SECONDS: Final = 100e-6
CLEARLY_SLOWER: Final = 0.5

ROUNDS: Final = 3
SLOWER: Final = 0.96
"""By so much processes differ that measure the same with two threads."""

_DIVIDED_BY_THEIR_PASSES: Final = frozenset(("conv1d_conversion", "tall_conv_conversion"))
"""What these passes make depends on how two threads would divide it, which is no range of sizes."""

_ALL: Final = frozenset(
    str(entry.form) for entry in ENTRIES if _DIVIDED_BY_THEIR_PASSES.isdisjoint(entry.made_by.split())
)


def middle(rounds: Sequence[Case]) -> Case:
    """Of the same case in several rounds, the one with the median speed: another process may disturb a whole round."""
    known = sorted((case for case in rounds if case.ratios), key=lambda case: case.speed.median if case.speed else 0.0)
    return known[len(known) // 2] if known else rounds[0]


def with_many(alone: Speed, with_two: Speed) -> tuple[float, float]:
    """Seconds of both models with `MANY` threads, by Amdahl's law.

    Args:
        alone: What was measured with one thread.
        with_two: What was measured with two.
    """

    def seconds(one: float, two: float) -> float:
        not_shared = min(max(2 * two - one, 0.0), one)
        return not_shared + (one - not_shared) / MANY

    return (
        seconds(alone.seconds, with_two.seconds),
        seconds(alone.seconds / alone.median, with_two.seconds / with_two.median),
    )


def verdict_on(speeds: Sequence[Speed]) -> Verdict:
    """The verdict on what was measured with two threads at the sizes of a row."""
    if any(speed.median < SLOWER and speed.high < 1 for speed in speeds):
        return Verdict.LOSES
    return Verdict.PAYS if any(speed.median > 1 + HYSTERESIS for speed in speeds) else Verdict.NEUTRAL


def rows_of(cases: Sequence[Case], alone: Speeds) -> Iterator[dict[str, Any]]:
    """The rows of a form, one for each range of the shipped table.

    Args:
        cases: The form at all its sizes, with two threads.
        alone: What was measured with one.
    """
    for at, own in tables.by_range(cases, CPU):
        both = [(alone.get((str(one.entry.form), tuple(one.given.items()))), one.speed) for one in own]
        known = [(one, two) for one, two in both if one is not None and two is not None]
        if len(known) < len(own):
            continue
        verdict, speeds = verdict_on([two for _, two in known]), [two.median for _, two in known]
        estimates = [with_many(one, two) for one, two in known if one.seconds >= ENOUGH_SECONDS]
        expected = [before / after for before, after in estimates]
        if expected and max(expected) < CLEARLY_SLOWER:
            verdict, speeds = Verdict.LOSES, [*speeds, *expected]
        yield _row(own, at, verdict, speeds)


def _row(
    cases: Sequence[Case], at: Mapping[str, tuple[int, float]], verdict: Verdict, speeds: Sequence[float]
) -> dict[str, Any]:
    about = tables.key_as_json(cases[0].entry.form, at)
    ranges = {"at": about.pop("at")} if "at" in about else {}
    speed = [round(min(speeds), 2), round(max(speeds), 2)]
    told = {"provider": CPU, "verdict": verdict.value, "speed": speed, "instead_of": cases[0].entry.instead_of}
    return {**about, **told, **ranges, "source": tables.processor()}


def _about(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["op"], row.get("variant", ""), row.get("at", {})


def _write(path: Path, rows: Sequence[Mapping[str, Any]], measured: Iterable[Entry]) -> None:
    """Write rows, and those that the file has of other forms."""
    had = json.loads(path.read_bytes())
    renewed = {(str(entry.form._replace(variant="")), entry.variant) for entry in measured}
    new = [_about(row) for row in rows]
    known = [_about(tables.key_as_json(cost.form, cost.at)) for cost in costs.of_processors()[0].own]
    kept = [
        row
        for row in had["costs"]
        if (row["op"], row.get("variant", "")) not in renewed or (_about(row) in known and _about(row) not in new)
    ]
    version = costs.shipped().measured.onnxruntime
    every = [*kept, *rows]
    processors = list(dict.fromkeys(row["source"] for row in every))
    how = "in turns, medians of ratios; where a form loses by that, as estimated for eight"
    head = {
        "name": f"onnxruntime-{version}-threads",
        "measured": {
            "onnxruntime": version,
            "processor": ", ".join(processors),
            "threads": 2,
            "kernels": "several threads",
        },
        "sources": {name: f"ONNX Runtime {version}, time with two threads of {name}, {how}" for name in processors},
    }
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in every)
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    path.write_text(f'{text},\n "costs": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def main() -> None:
    """Write what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tools.measure_threads", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=400.0, help="with one thread, and with two; nothing else may run"
    )
    parser.add_argument("--forms", nargs="*", default=[], help="forms by their names; all if it is left out")
    given = parser.parse_args()
    table = costs.shipped().measured.onnxruntime
    if releases.parse_release(table) != releases.installed():
        sys.exit(f"the shipped table is of ONNX Runtime {table}: install that one")
    wrong = set(given.forms) - _ALL
    if wrong:
        sys.exit(f"there is no form named {min(wrong)!r}")
    entries = [entry for entry in ENTRIES if str(entry.form) in (given.forms or _ALL)]
    alone = speeds_of(measure(entries, seconds=given.seconds).cases)
    rounds = [measure(entries, seconds=given.seconds / ROUNDS, threads=2).cases for _ in range(ROUNDS)]
    cases = [middle(each) for each in zip(*rounds, strict=True)]
    rows = [row for own in tables.by_form(cases) for row in rows_of(own, alone)]
    _write(costs.WITH_THREADS, rows, entries)


if __name__ == "__main__":
    main()
