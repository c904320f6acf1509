"""Refresh ``costs.releases.json``: what the forms of the shipped table cost on older releases of ONNX Runtime.

::

    python -m tools.measure_releases --releases 1.17,1.20,1.23,1.27 --seconds 600
    python -m tools.measure_releases --releases 1.17,1.20,1.23,1.27 --seconds 30 --forms "Conv of opset 22"

Each release runs in an environment of its own (`tools.versions`), and is measured as ``ortopt costs measure`` does. So
is first, for comparison, the one that is installed here, which has to be the one of the shipped table: a form that is
as slow with it on this processor is not held against the release. What counts are both models as ONNX Runtime optimizes
them when it loads them: a form that it makes itself costs nothing. Rows of the forms and releases that are measured are
replaced, others stay; `ortopt.analysis.cost_tables` says what they mean.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import structs

from ortopt.analysis import cost_tables, costs, releases
from ortopt.analysis.costs import HYSTERESIS, Verdict
from ortopt.analysis.providers import CPU
from ortopt.measurement import cost_tables as tables
from ortopt.measurement.costs import Case, measure
from ortopt.measurement.forms.catalog import ENTRIES
from ortopt.measurement.forms.entry import Entry
from ortopt.measurement.pairs import Speed
from ortopt.verification import runtimes
from tools import versions

ROOT: Final = Path(__file__).resolve().parent.parent

_REFUSED: Final = "[ONNXRuntimeError]"
"""What errors begin with that ONNX Runtime itself raises."""

Speeds: TypeAlias = Mapping[tuple[str, tuple[tuple[str, int], ...]], Speed]
"""Speeds by the form and the sizes."""


def speeds_of(cases: Iterable[Case]) -> Speeds:
    """What was measured of cases."""
    return {_key(case): speed for case in cases if (speed := case.speed) is not None}


def _key(case: Case) -> tuple[str, tuple[tuple[str, int], ...]]:
    return str(case.entry.form), tuple(case.given.items())


def verdict_on(cases: Sequence[Case], control: Speeds) -> Verdict:
    """The verdict on a form on a release: what seems to win at all sizes is not held against it where it is not clear.

    Args:
        cases: The form at the sizes of a row, all of them measured.
        control: Speeds with the release of the shipped table: where the form is as slow with that one, this is no
            matter of the release.
    """
    told = [(speed, control.get(_key(case))) for case in cases if (speed := case.speed) is not None]
    slower = [speed for speed, here in told if speed.median < 1 - HYSTERESIS and not _is_as_slow(speed, here)]
    if slower:
        return Verdict.LOSES if any(speed.high < 1 for speed in slower) else Verdict.UNKNOWN
    return Verdict.PAYS if any(speed.median > 1 + HYSTERESIS for speed, _ in told) else Verdict.NEUTRAL


def _is_as_slow(speed: Speed, here: Speed | None) -> bool:
    """Whether a form loses with the release of the table, too, or is not clearly slower than with that one."""
    if here is None:
        return False
    return (here.median < 1 - HYSTERESIS and here.high < 1) or speed.high >= here.low


def rows_of(cases: Sequence[Case], control: Speeds) -> Iterable[tuple[dict[str, Any], list[Any] | None]]:
    """The rows of a form on a release: what each is about, and its verdict and speeds; None where it is refused.

    Args:
        cases: The form at all its sizes.
        control: As `verdict_on` takes it.
    """
    for at, own in tables.by_range(cases, CPU):
        about = tables.key_as_json(own[0].entry.form, at)
        if all(case.error.startswith(_REFUSED) for case in own):
            yield about, None
        elif all(case.ratios for case in own):
            medians = [speed.median for case in own if (speed := case.speed) is not None]
            yield about, [verdict_on(own, control).value, round(min(medians), 2), round(max(medians), 2)]


def merged(
    data: Mapping[str, Any], release: str, rows: Iterable[tuple[dict[str, Any], list[Any] | None]]
) -> list[dict[str, Any]]:
    """The rows of a file with those of a release in place of what it has had of the same.

    Args:
        data: The file.
        release: Major and minor version.
        rows: From `rows_of`.
    """
    known = {json.dumps(row["about"]): row["speeds"] for row in _about(data["costs"])}
    for about, told in rows:
        known.setdefault(json.dumps(about), {})[release] = told
    return [{**json.loads(about), "speeds": _in_order(speeds)} for about, speeds in known.items()]


def _in_order(of_releases: Mapping[str, Any]) -> dict[str, Any]:
    """The same, from the oldest release on."""
    return dict(sorted(of_releases.items(), key=lambda one: releases.parse_release(one[0])))


def _about(rows: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for row in rows:
        yield {"about": {key: value for key, value in row.items() if key != "speeds"}, "speeds": dict(row["speeds"])}


def written(data: Mapping[str, Any]) -> str:
    """The file: a row a line."""
    head = json.dumps({key: value for key, value in data.items() if key != "costs"}, indent=1, ensure_ascii=False)
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in data["costs"])
    return f'{head.removesuffix(chr(10) + "}")},\n "costs": [\n{lines}\n ]\n}}\n'


def entries_of(names: Sequence[str]) -> list[Entry]:
    """The forms of some names, to be measured as they are deployed; all where none is given.

    Args:
        names: As ``ortopt costs show`` has them.
    """
    known = {str(entry.form): entry for entry in ENTRIES}
    for name in names:
        if name not in known:
            sys.exit(f"there is no form named {name!r}")
    return [structs.replace(known[name], as_loaded=True) for name in names or known]


def main() -> None:
    """Write what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tools.measure_releases", description=__doc__)
    parser.add_argument("--releases", required=True, help="e.g. 1.17,1.20")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each release")
    parser.add_argument("--forms", nargs="*", default=[], help="forms by their names; all if it is left out")
    given = parser.parse_args()
    table = costs.shipped().measured.onnxruntime
    if releases.parse_release(table) != releases.installed():
        sys.exit(f"the shipped table is of ONNX Runtime {table}: install that one")
    entries = entries_of(given.forms)
    control = speeds_of(measure(entries, seconds=given.seconds).cases)
    for release in given.releases.split(","):
        python, why = versions.runtime_environment(
            release, lambda command: subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        )
        if python is None:
            sys.exit(f"onnxruntime {release} cannot be installed: {why}")
        version = runtimes.find(python).name.split()[-1]
        cases = measure(entries, seconds=given.seconds, interpreter=python).cases
        rows = (row for own in tables.by_form(cases) for row in rows_of(own, control))
        _write(version, rows)
        print(f"{version} is measured", flush=True)


def _write(version: str, rows: Iterable[tuple[dict[str, Any], list[Any] | None]]) -> None:
    """Write what was measured of a release."""
    data = json.loads(cost_tables.PATH.read_bytes())
    release = releases.shown(releases.parse_release(version))
    others = {name: day for name, day in data["releases"].items() if not name.startswith(f"{release}.")}
    head = {
        "releases": _in_order({**others, version: time.strftime("%Y-%m-%d")}),
        "processor": _with(data["processor"], tables.processor()),
        "threads": 1,
    }
    cost_tables.PATH.write_text(written({**head, "costs": merged(data, release, rows)}), encoding="utf-8")


def _with(processors: str, one: str) -> str:
    """The processors on which rows were measured, with one more."""
    return processors if one in processors else f"{processors}, {one}"


if __name__ == "__main__":
    main()
