"""Refresh ``costs.TARGET.json``: what forms of the shipped table cost on another runtime than ONNX Runtime.

::

    python -m tools.measure_targets web node_modules/onnxruntime-web
    python -m tools.measure_targets openvino ~/openvino/bin/python
    python -m tools.measure_targets web node_modules/onnxruntime-web --forms "MatMul in place of DFT"

Both models of a form run in one process, in turns, on one processor (`fuzzing.turns`). A form counts by its slowest and
its fastest size within each range of the shipped table; a range with a size at which it does not run is not known.
Forms that read more weights than what they stand for run with empty caches. Rows of the forms that are measured are
replaced, others stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fuzzing import turns
from ortopt import registry
from ortopt.analysis import costs
from ortopt.analysis.costs import Cost, Verdict
from ortopt.analysis.providers import CPU
from ortopt.measurement import cost_tables as tables
from ortopt.measurement.forms.catalog import ENTRIES
from ortopt.measurement.forms.entry import Entry, FormComparison
from ortopt.options import Target
from ortopt.semantics import STANDARD_DOMAINS
from ortopt.verification import runtimes
from ortopt.verification.process import WorkerError
from ortopt.verification.start import Runtime

_SECONDS: Final = 0.5
"""Processor time for each form at each size."""

_WIDE: Final = "AVX-512"

_MIN_GAIN: Final = 1.1
"""From how many times as fast on, at its best size, a form pays: what gains less alone may gain none in a network."""


def path_of(target: Target) -> Path:
    """The file that has a target's rows of this machine's kind of processors.

    Args:
        target: The target.
    """
    return costs.paths_of(target)[0 if _WIDE in tables.processor() else -1]


def entries_of(target: Target, names: Sequence[str] = ()) -> list[Entry]:
    """The forms to measure: those that a result for a target may have.

    Args:
        target: The target.
        names: Of some of them, as ``ortopt costs show`` has them; none are all.
    """
    known = registry.installed()
    meant = [entry for entry in ENTRIES if _is_for(entry, target, known)]
    return [entry for entry in meant if not names or str(entry.form) in names]


def _is_for(entry: Entry, target: Target, known: registry.Registry) -> bool:
    if target.keeps_to_onnx and entry.form.domain:
        return False
    return all(target in (known.find(name).targets or (target,)) for name in entry.made_by.split())


def rows_of(entry: Entry, target: Target, runtime: Runtime) -> Iterator[dict[str, Any]]:
    """The rows of a form, one for each range of the shipped table.

    Args:
        entry: The form.
        target: The target.
        runtime: Its runtime.
    """
    speeds = {number: _speed(entry.at(given), target, runtime) for number, given in enumerate(entry.cases)}
    for cost in costs.shipped().own:
        if cost.form == entry.form and cost.provider == CPU:
            yield _row(cost, [speeds[number] for number, given in enumerate(entry.cases) if cost.holds_at(given)])


def _row(cost: Cost, speeds: Sequence[float | None]) -> dict[str, Any]:
    """What is known of a form in a range, of its speeds there: nothing, where it does not run at one of the sizes.

    Args:
        cost: The row of the shipped table.
        speeds: How many times as fast it is at each size in its range; None where it does not run.
    """
    known = [speed for speed in speeds if speed is not None]
    told: dict[str, Any] = {"provider": CPU, "verdict": Verdict.UNKNOWN.value}
    if known and len(known) == len(speeds):
        speed = round(min(known), 2), round(max(known), 2)
        verdict = costs.verdict_of(speed)
        if verdict is Verdict.PAYS and speed[1] < _MIN_GAIN:
            verdict = Verdict.NEUTRAL
        told |= {"verdict": verdict.value, "speed": list(speed)}
    about = tables.key_as_json(cost.form, cost.at)
    at = {"at": about.pop("at")} if "at" in about else {}
    return {**about, **told, "instead_of": cost.instead_of, **at}


def _speed(pair: FormComparison, target: Target, runtime: Runtime) -> float | None:
    """How many times as fast as what it stands for a form is at some sizes; None where one of the two does not run."""
    before, after = pair.models()
    if target.keeps_to_onnx and any(node.domain not in STANDARD_DOMAINS for node in after.graph.node):
        return None
    inputs = {name: np.asarray(array) for name, array in pair.inputs.items()}
    try:
        given = before.SerializeToString(), after.SerializeToString(), inputs, _SECONDS
        return 1 / turns.ratio(runtime, *given, cold=pair.entry.cold)
    except WorkerError:
        return None


def main() -> None:
    """Write what was measured, form by form."""
    parser = argparse.ArgumentParser(prog="python -m tools.measure_targets", description=__doc__)
    parser.add_argument("target", choices=["openvino", "web"], help="the target whose table is written")
    parser.add_argument("runtime", help="a Python with OpenVINO, or the folder of the package onnxruntime-web")
    parser.add_argument("--forms", nargs="*", default=[], help="forms by their names; all if it is left out")
    given = parser.parse_args()
    target, runtime = Target(given.target), runtimes.find(given.runtime)
    entries = entries_of(target, given.forms)
    if not entries:
        sys.exit("there are no such forms")
    _check_version(target, runtime, entries)
    for entry in entries:
        rows = list(rows_of(entry, target, runtime))
        print(f"{entry.form}: {', '.join(str(row.get('speed', row['verdict'])) for row in rows)}", flush=True)
        path_of(target).write_text(_written(target, rows, runtime), encoding="utf-8")


def _data(target: Target) -> dict[str, Any]:
    empty: dict[str, Any] = {"name": "", "costs": []}
    data: dict[str, Any] = json.loads(path_of(target).read_bytes()) if path_of(target).exists() else empty
    return data


def _name(target: Target, runtime: Runtime) -> str:
    return f"{'onnxruntime-' if target is Target.WEB else ''}{target.value}-{runtime.name.split()[-1]}"


def _check_version(target: Target, runtime: Runtime, entries: Iterable[Entry]) -> None:
    """Refuse to write rows of a version beside those of another one that stay."""
    data, measured = _data(target), {_key(entry.form._asdict()) for entry in entries}
    stays = any(_key(row) not in measured for row in data["costs"])
    if stays and data["name"] != _name(target, runtime):
        sys.exit(f"other rows are of {data['name']}: measure all forms")


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    """What a row is about, but for its sizes."""
    domain, op = row.get("domain", ""), row.get("op") or row["op_type"]
    return f"{domain}::{op}" if domain else op, row.get("variant", "")


def _written(target: Target, rows: Sequence[dict[str, Any]], runtime: Runtime) -> str:
    had = _data(target)
    measured = {_key(row) for row in rows}
    kept = [row for row in had["costs"] if _key(row) not in measured]
    version, processor = runtime.name.split()[-1], tables.processor()
    place = "node" if target is Target.WEB else runtime.name
    source = f"{place} on {processor}"
    used = {row["source"] for row in kept}
    sources = {name: text for name, text in had.get("sources", {}).items() if name in used}
    is_web = target is Target.WEB
    circumstances = {
        "onnxruntime": version if is_web else "",
        "processor": processor,
        "threads": 1,
        "kernels": "WebAssembly" if is_web else source,
    }
    how = f"{runtime.name} in {source}" if is_web else source
    how += (
        ", CPU time, in turns in one process, medians of ratios, both models as it loads them; with empty caches those"
    )
    how += " that read more weights than what they stand for"
    head = {"name": _name(target, runtime), "measured": circumstances, "sources": {**sources, source: how}}
    lines = ",\n".join(
        f"  {json.dumps(row, ensure_ascii=False)}" for row in [*kept, *({**row, "source": source} for row in rows)]
    )
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{text},\n "costs": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    main()
