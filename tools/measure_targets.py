"""Refresh ``costs.web.json``: what forms of the shipped table cost in ONNX Runtime Web.

::

    python -m tools.measure_web node_modules/onnxruntime-web
    python -m tools.measure_web node_modules/onnxruntime-web --forms "MatMul in place of DFT"

Measured are the forms of passes that are for ``--target web`` as well: both models run in node, in turns, on one
processor (`fuzzing.turns`). A form counts by its slowest and its fastest size within each range of the shipped table.
Rows of the forms that are measured are replaced, others stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fuzzing import turns
from ortopt import registry
from ortopt.analysis import costs
from ortopt.analysis.providers import CPU
from ortopt.measurement import cost_tables as tables
from ortopt.measurement.forms.catalog import ENTRIES
from ortopt.measurement.forms.entry import Entry
from ortopt.options import Target
from ortopt.verification import runtimes
from ortopt.verification.start import Runtime

PATH: Final = Path(costs.__file__).with_name("data") / "costs.web.json"

_SECONDS: Final = 0.5
"""Processor time for each form at each size."""


def entries_of(names: Sequence[str]) -> list[Entry]:
    """The forms to measure: those of some names, or all that passes for the web make.

    Args:
        names: As ``ortopt costs show`` has them.
    """
    known = registry.installed()
    for_web = [entry for entry in ENTRIES if entry.made_by and _is_for_web(entry, known)]
    return [entry for entry in for_web if not names or str(entry.form) in names]


def _is_for_web(entry: Entry, known: registry.Registry) -> bool:
    return all(Target.WEB in (known.find(name).targets or (Target.WEB,)) for name in entry.made_by.split())


def rows_of(entry: Entry, runtime: Runtime) -> Iterator[dict[str, Any]]:
    """The rows of a form, one for each range of the shipped table.

    Args:
        entry: The form.
        runtime: ONNX Runtime Web.
    """
    speeds = {}
    for number, given in enumerate(entry.cases):
        pair = entry.at(given)
        before, after = (model.SerializeToString() for model in pair.models())
        inputs = {name: np.asarray(array) for name, array in pair.inputs.items()}
        speeds[number] = 1 / turns.ratio(runtime, before, after, inputs, _SECONDS)
    for cost in costs.shipped().own:
        own = [speeds[number] for number, given in enumerate(entry.cases) if cost.holds_at(given)]
        if cost.form == entry.form and cost.provider == CPU and own:
            speed = round(min(own), 2), round(max(own), 2)
            about = tables.key_as_json(cost.form, cost.at)
            at = {"at": about.pop("at")} if "at" in about else {}
            told = {"provider": CPU, "verdict": costs.verdict_of(speed).value, "speed": list(speed)}
            yield {**about, **told, "instead_of": cost.instead_of, **at}


def main() -> None:
    """Write what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tools.measure_web", description=__doc__)
    parser.add_argument("runtime", help="the folder of the package onnxruntime-web")
    parser.add_argument("--forms", nargs="*", default=[], help="forms by their names; all if it is left out")
    given = parser.parse_args()
    runtime = runtimes.find(given.runtime)
    rows = []
    for entry in entries_of(given.forms):
        rows += list(rows_of(entry, runtime))
        print(
            f"{entry.form}: {', '.join(str(row['speed']) for row in rows if row['variant'] == entry.variant)}",
            flush=True,
        )
    if not rows:
        sys.exit("there are no such forms")
    PATH.write_text(_written(rows, runtime), encoding="utf-8")


def _written(rows: Sequence[dict[str, Any]], runtime: Runtime) -> str:
    had = json.loads(PATH.read_bytes()) if PATH.exists() else {"costs": []}
    measured = {(row["op"], row.get("variant", "")) for row in rows}
    kept = [row for row in had["costs"] if (row["op"], row.get("variant", "")) not in measured]
    version, processor = runtime.name.split()[-1], tables.processor()
    if kept and version != costs.on_the_web().measured.onnxruntime:
        sys.exit("other rows are of another version: measure all forms")
    source = f"node on {processor}"
    used = {row["source"] for row in kept}
    sources = {name: text for name, text in had.get("sources", {}).items() if name in used}
    measured_here = {"onnxruntime": version, "processor": processor, "threads": 1, "kernels": "WebAssembly"}
    how = f"{runtime.name} in {source}, CPU time, in turns, medians of ratios, both models as it loads them"
    head = {
        "name": f"onnxruntime-web-{version}",
        "measured": had["measured"] if kept else measured_here,
        "sources": {**sources, source: how},
    }
    lines = ",\n".join(
        f"  {json.dumps(row, ensure_ascii=False)}" for row in [*kept, *({**row, "source": source} for row in rows)]
    )
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{text},\n "costs": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    main()
