"""Refresh ``ortopt/analysis/data``: which execution provider has which kernel, and the schemas of ORT's own ops.

::

    python -m tools.refresh_kernels                                  # CPU kernels, schemas: installed wheel
    python -m tools.refresh_kernels --cuda                           # CUDA kernels too, where CUDA works
    python -m tools.refresh_kernels --cuda-table OperatorKernels.md  # CUDA kernels from ORT's documentation
    python -m tools.refresh_kernels --history 1.17,1.18,newest       # what releases have of the CPU's, nothing else

The registry of kernels is asked in a child process: with onnxruntime-gpu on a machine without the CUDA libraries,
``get_all_opkernel_def()`` ends the process with a segmentation fault. Install the plain ``onnxruntime`` wheel in an
environment of its own there. ``docs/OperatorKernels.md`` of a release (MIT) tells of CUDA without a GPU.

Form of a kernel file (one line per op, so that a diff can be read)::

    {"version": "1.31.1", "max_opset": 26, "types": [...], "sets": [[indices into types], ...],
     "kernels": {domain: {op: [[first opset, last opset or null, {constraint: index into sets}], ...]}}}

Form of the schema file: ``{"types": ..., "sets": ..., "schemas": {domain: {op: [[since, inputs, outputs,
{constraint: set}], ...]}}}`` with ``[name, type or constraint]`` for each formal input and output.

Form of the history: ``{"releases": [...], "types": ..., "sets": ..., "kernels": {domain: {op: [[release, rows], ...]}},
"schemas": {domain: {op: [[release, [[since, [least inputs, most], [least outputs, most], attributes], ...]], ...]}}}``
from the oldest release on, an entry where something changed, null where the release has no such kernel or op. Ops that
are the same in all releases are left out. Each release is asked in an environment of its own (`tools.versions`).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools import versions

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "ortopt" / "analysis" / "data"
FOREVER = 2**31 - 1

ASK = """
import json, sys
from ortopt.analysis.providers import CUDA, usable
usable(CUDA)  # loads CUDA's libraries from NVIDIA's wheels, where the loader does not find them by itself
from onnxruntime.capi import onnxruntime_pybind11_state as state
rows = []
for kernel in state.get_all_opkernel_def():
    first, last = kernel.version_range
    rows.append([kernel.provider, kernel.domain, kernel.op_name, first, last, dict(kernel.type_constraints)])
json.dump(rows, sys.stdout)
"""


ASK_RELEASE = """
import json, sys
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state
kernels = [
    [kernel.provider, kernel.domain, kernel.op_name, *kernel.version_range, dict(kernel.type_constraints)]
    for kernel in state.get_all_opkernel_def()
]
schemas = [
    [one.domain, one.name, one.since_version, one.min_input, one.max_input, one.min_output, one.max_output]
    + [sorted(one.attributes)]
    for one in state.get_all_operator_schema()
]
json.dump({"version": onnxruntime.__version__, "kernels": kernels, "schemas": schemas}, sys.stdout)
"""


class Kernel(NamedTuple):
    """One registered kernel: the opsets ``first`` to ``last`` (None: open) and the types of each constraint."""

    provider: str
    domain: str
    op: str
    first: int
    last: int | None
    types: dict[str, list[str]]


class Interner:
    """Type names and sets of them, each stored once."""

    def __init__(self) -> None:
        self.types: dict[str, int] = {}
        self.sets: dict[tuple[int, ...], int] = {}

    def index(self, names: Iterable[str]) -> int:
        """The number of the set of these type names."""
        key = tuple(sorted(self.types.setdefault(name, len(self.types)) for name in set(names)))
        return self.sets.setdefault(key, len(self.sets))


def live_kernels() -> list[Kernel]:
    """What the installed onnxruntime has registered, asked in a child process."""
    child = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, check=False)
    if child.returncode:
        sys.exit(
            f"the child that asked onnxruntime for its kernels ended with {child.returncode}: onnxruntime-gpu without"
            " CUDA libraries crashes there; use an environment with the plain onnxruntime wheel"
        )
    return [
        Kernel(provider, domain, op, first, None if last >= FOREVER else last, types)
        for provider, domain, op, first, last, types in json.loads(child.stdout.splitlines()[-1])
    ]


def documented_kernels(table: str) -> Iterator[Kernel]:
    """The rows of ORT's docs/OperatorKernels.md: ``|op|*in* X:**T**<br>...|version|**T** = tensor(float), ...|``."""
    provider = domain = op = ""
    for line in table.splitlines():
        if heading := re.match(r"## Operators implemented by (\w+)", line):
            provider = heading[1]
        elif named := re.match(r"\|\*\*Operator Domain:\*\* \*(.*?)\*\|", line):
            domain = "" if named[1] == "ai.onnx" else named[1]
        elif row := re.match(r"\|([^|*]*)\|([^|]*)\|(\d+\+?|\[\d+, \d+\])\|(.*)\|\s*$", line):
            op = row[1].strip() or op
            bounds = [int(number) for number in re.findall(r"\d+", row[3])]
            last = None if row[3].endswith("+") else bounds[-1]
            constraints = re.findall(r"\*\*(\w+)\*\* = (.*?)(?=<br/?>|$)", row[4])
            types = {name: [one.strip() for one in re.split(r",\s*(?![^(]*\))", names)] for name, names in constraints}
            yield Kernel(provider, domain, op, bounds[0], last, types)


def pack(kernels: Iterable[Kernel], version: str, max_opset: int) -> dict[str, Any]:
    """One provider's kernels in the form of the data file; kernels that differ in one constraint become one."""
    table: dict[str, dict[str, dict[tuple[int, int | None], list[dict[str, frozenset[str]]]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for kernel in kernels:
        rules = table[kernel.domain][kernel.op][kernel.first, kernel.last]
        rules.append({name: frozenset(types) for name, types in kernel.types.items()})
    interner = Interner()
    packed = {
        domain: {
            op: [
                [first, last, {name: interner.index(types) for name, types in sorted(rule.items())}]
                for (first, last), rules in sorted(versions.items(), key=lambda item: item[0][0])
                for rule in merged(rules)
            ]
            for op, versions in sorted(ops.items())
        }
        for domain, ops in sorted(table.items())
    }
    return {
        "version": version,
        "max_opset": max_opset,
        "types": list(interner.types),
        "sets": [list(one) for one in interner.sets],
        "kernels": packed,
    }


def merged(rules: list[dict[str, frozenset[str]]]) -> list[dict[str, frozenset[str]]]:
    """The same rules in fewer: two that differ in exactly one constraint are one with the union."""
    rules = sorted({tuple(sorted((n, tuple(sorted(t))) for n, t in rule.items())) for rule in rules})  # type: ignore[assignment]
    result: list[dict[str, frozenset[str]]] = [{n: frozenset(t) for n, t in rule} for rule in rules]  # type: ignore[misc]
    again = True
    while again:
        again = False
        for i, rule in enumerate(result):
            for other in result[i + 1 :]:
                different = [name for name in rule if rule.keys() == other.keys() and rule[name] != other[name]]
                if rule.keys() == other.keys() and len(different) <= 1:
                    for name in different:
                        rule[name] |= other[name]
                    result.remove(other)
                    again = True
                    break
    return result


def schemas() -> dict[str, Any]:
    """ORT's schemas that onnx does not have: its own domains, and its additions to ai.onnx."""
    import onnx.defs
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    official = {(one.domain, one.name, one.since_version) for one in onnx.defs.get_all_schemas_with_history()}
    interner = Interner()
    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for one in sorted(state.get_all_operator_schema(), key=lambda one: (one.domain, one.name, one.since_version)):
        if (one.domain, one.name, one.since_version) in official or one.domain == "ai.onnx.ml":
            continue
        found[one.domain][one.name].append(
            [
                one.since_version,
                [[formal.name, formal.typeStr] for formal in one.inputs],
                [[formal.name, formal.typeStr] for formal in one.outputs],
                {c.type_param_str: interner.index(c.allowed_type_strs) for c in one.type_constraints},
            ]
        )
    return {"types": list(interner.types), "sets": [list(one) for one in interner.sets], "schemas": found}


def max_opset() -> int:
    """The highest opset of ai.onnx that the installed onnxruntime loads."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for opset in range(onnx.defs.onnx_opset_version(), 0, -1):
        text = f'<ir_version: 8, opset_import: ["": {opset}]> main (float[1] x) => (float[1] y) {{ y = Identity (x) }}'
        try:
            onnxruntime.InferenceSession(
                onnx.parser.parse_model(text).SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception:  # onnxruntime raises a class of its own for each status
            continue
        return opset
    sys.exit("onnxruntime loads no opset at all")


def history(releases: Sequence[str]) -> dict[str, Any]:
    """What releases have of the CPU's kernels and of ORT's own ops, where they differ.

    Args:
        releases: Major and minor versions, from the oldest on, or ``newest``.
    """
    asked = [release_facts(release) for release in releases]
    names = [".".join(facts["version"].split(".")[:2]) for facts in asked]
    interner = Interner()
    kernels, own = ([table(facts) for facts in asked] for table in (_kernel_rows, _own_schemas))
    return {
        "releases": names,
        "kernels": changes(names, kernels, lambda rows: _interned(rows, interner)),
        "schemas": changes(names, own, list),
        "types": list(interner.types),
        "sets": [list(one) for one in interner.sets],
    }


def release_facts(release: str) -> dict[str, Any]:
    """What a release of onnxruntime has registered, asked in its environment."""
    python, why = versions.runtime_environment(
        release, lambda command: subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    )
    if python is None:
        sys.exit(f"onnxruntime {release} cannot be installed: {why}")
    child = subprocess.run([python, "-c", ASK_RELEASE], capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return facts


def _kernel_rows(facts: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    rows: dict[tuple[str, str], Any] = defaultdict(list)
    for provider, domain, op, first, last, types in facts["kernels"]:
        if provider == "CPUExecutionProvider":
            rows[domain, op].append([first, None if last >= FOREVER else last, types])
    return {op: sorted(found, key=json.dumps) for op, found in rows.items()}


def _own_schemas(facts: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    rows: dict[tuple[str, str], Any] = defaultdict(list)
    for domain, op, since, least, most, least_given, most_given, attributes in facts["schemas"]:
        if domain not in ("", "ai.onnx.ml"):
            rows[domain, op].append([since, [least, most], [least_given, most_given], attributes])
    return {op: sorted(found) for op, found in rows.items()}


def _interned(rows: Iterable[Any], interner: Interner) -> list[Any]:
    by_range: dict[tuple[int, int | None], list[dict[str, frozenset[str]]]] = defaultdict(list)
    for first, last, types in rows:
        by_range[first, last].append({name: frozenset(some) for name, some in types.items()})
    return [
        [first, last, {name: interner.index(types) for name, types in sorted(rule.items())}]
        for (first, last), rules in sorted(by_range.items(), key=lambda item: item[0][0])
        for rule in merged(rules)
    ]


def changes(
    releases: Sequence[str], tables: Sequence[Mapping[tuple[str, str], Any]], shown: Callable[[Any], list[Any]]
) -> dict[str, dict[str, list[Any]]]:
    """Of each op that is not the same in all releases, what there is from which release on.

    Args:
        releases: The releases, from the oldest on.
        tables: What each of them has of each op.
        shown: Makes what is written of that.
    """
    found: dict[str, dict[str, list[Any]]] = defaultdict(dict)
    for domain, op in sorted({key for table in tables for key in table}):
        rows: list[Any] = []
        last: Any = ()
        for release, table in zip(releases, tables, strict=True):
            now = table.get((domain, op))
            if now != last:
                rows.append([release, None if now is None else shown(now)])
                last = now
        if len(rows) > 1:
            found[domain][op] = rows
    return found


def write(path: Path, data: dict[str, Any]) -> None:
    """JSON with one line per op."""
    lines = []
    for key, value in data.items():
        if key not in ("kernels", "schemas"):
            lines.append(f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}")
            continue
        domains = [
            f"{json.dumps(domain)}:{{\n"
            + ",\n".join(f"{json.dumps(op)}:{json.dumps(rows, separators=(',', ':'))}" for op, rows in ops.items())
            + "\n}"
            for domain, ops in value.items()
        ]
        lines.append(f"{json.dumps(key)}:{{\n" + ",\n".join(domains) + "\n}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes")


def main() -> None:
    """Write what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="write the CUDA kernels that this onnxruntime has")
    parser.add_argument("--cuda-table", type=Path, help="docs/OperatorKernels.md of an onnxruntime release")
    parser.add_argument("--cuda-version", default="1.30", help="the release that --cuda-table is from")
    parser.add_argument("--history", help="write what releases of onnxruntime have: 1.17,1.18,newest")
    arguments = parser.parse_args()
    if arguments.history:
        write(DATA / "kernels-cpu-history.json", history(arguments.history.split(",")))
        return
    import onnxruntime

    version, highest = onnxruntime.__version__, max_opset()
    kernels = live_kernels()
    cpu = [kernel for kernel in kernels if kernel.provider == "CPUExecutionProvider"]
    write(DATA / "kernels-cpu.json", pack(cpu, version, highest))
    write(DATA / "schemas-ort.json", schemas())
    if arguments.cuda_table:
        version = arguments.cuda_version
        kernels = list(documented_kernels(arguments.cuda_table.read_text(encoding="utf-8")))
    if arguments.cuda_table or arguments.cuda:
        cuda = [kernel for kernel in kernels if kernel.provider == "CUDAExecutionProvider"]
        if not cuda:
            sys.exit("no CUDA kernels there")
        write(DATA / "kernels-cuda.json", pack(cuda, version, highest))


if __name__ == "__main__":
    main()
