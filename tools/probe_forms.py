"""Refresh ``fuzzing/produced-forms.json``: what comes of each form that passes make, on releases of ONNX Runtime.

::

    python -m tools.probe_forms --releases 1.17,1.20,newest

The tests of the passes are run, and each result of a pass that they compare is kept, with its original and its inputs.
It is run on each release that it is said to run on, without that release's optimizations and with them, and with
inputs of several kinds: those of the test, with each open dimension 0, 1 or 2, and with masks that hide everything;
none is infinite or NaN. What it should give is what its original gives on the ONNX Runtime that is installed here,
where the result has been verified. Each release has an environment of its own (`tools.versions`); its version and the
digest of its library are kept.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest

from fuzzing import forms
from fuzzing.releases import Runner, difference
from ortopt import OrtoptError, testing
from ortopt.analysis import releases
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.verification import runtimes
from ortopt.verification.input_sets import is_finite
from ortopt.verification.inputs import Interface
from ortopt.verification.process import WorkerError
from tools import versions
from tools.probe_kernels import library_digest

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Probe:
    """A result of a pass.

    Attributes:
        name: The test that it is of.
        original: What the pass was given.
        result: What it made of it.
        produced: The forms that it made.
        needed: The first release that the result is said to run on; None if that is left open.
        inputs: Sets of inputs.
        wanted: What the original gives for each.
    """

    name: str
    original: bytes
    result: bytes
    produced: frozenset[str]
    needed: str | None
    inputs: list[dict[str, Any]] = field(default_factory=list)
    wanted: list[list[Any]] = field(default_factory=list)


class Recorder:
    """A plugin of pytest that keeps the results of passes which tests compare.

    Attributes:
        probes: What it has kept, by original and result.
    """

    def __init__(self) -> None:
        self.probes: dict[tuple[bytes, bytes], Probe] = {}
        self._test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Note which test runs."""
        self._test = item.nodeid
        return (yield)

    def record(self, original: ir.Model, result: ir.Model, inputs: Mapping[str, Any] | None) -> None:
        """Keep a result.

        Args:
            original: What a pass was given.
            result: What it made of it; its values have types.
            inputs: Those of the test, if it has any.
        """
        produced = forms.produced(original, result)
        if not produced:
            return
        probe = Probe(self._test, _oldest(original), _oldest(result), produced, forms.needed(result))
        kept = self.probes.setdefault((probe.original, probe.result), probe)
        if inputs:
            kept.inputs.append(dict(inputs))


def _oldest(model: ir.Model) -> bytes:
    """A model with the IR version that it needs: tests give a newer one."""
    copy = load(to_bytes(model))
    copy.ir_version = releases.needed_ir_version(copy)
    return to_bytes(copy)


def draw(probe: Probe, here: Runner) -> None:
    """Give a probe more inputs, and say what is wanted for each; those on which both do not agree here are left out.

    Args:
        probe: The probe.
        here: Runs models on the ONNX Runtime that is installed.
    """
    interface = Interface(load(probe.original))
    sets = list(probe.inputs)
    sizes = [None, *(dict.fromkeys(interface.symbols, size) for size in (0, 1, 2))]
    sizes += [{symbol: 0} for symbol in interface.symbols if len(interface.symbols) > 1]
    for chosen in sizes if interface.symbols else [None]:
        try:
            sets.append(dict(interface.draw(sizes=chosen)))
        except OrtoptError:
            continue
    if sets and any(array.dtype == bool for array in map(np.asarray, sets[-1].values())):
        sets.append({name: np.zeros_like(a) if a.dtype == bool else a for name, a in sets[-1].items()})
    probe.inputs, probe.wanted = [], []
    for inputs in filter(is_finite, sets):
        wanted = _runs(here, probe.original, inputs)
        # what ONNX Runtime's own rewrites make of nothing is no release's fault alone: they fail here, too
        ways = (False, True) if any(np.size(array) == 0 for array in inputs.values()) else (False,)
        if wanted is not None and all(_gives(here, probe.result, inputs, wanted, optimize=way) for way in ways):
            probe.inputs.append(inputs)
            probe.wanted.append(wanted)


def outcome(probe: Probe, runner: Runner) -> str:
    """What comes of a probe on a runtime, as a letter of `fuzzing.forms`.

    Args:
        probe: The probe.
        runner: Runs models there.
    """
    if not probe.inputs:
        return forms.NOT_RUN
    for optimize, letter in ((False, forms.WRONG), (True, forms.REWRITTEN)):
        if not _agrees(runner, probe, probe.result, optimize=optimize):
            right = _agrees(runner, probe, probe.original, optimize=optimize)
            return letter if right else forms.LIKE_THE_ORIGINAL
    return forms.RIGHT


def _agrees(runner: Runner, probe: Probe, model: bytes, *, optimize: bool) -> bool:
    """Whether a model gives what is wanted of a probe."""
    given = runner.run_all(model, probe.inputs, optimize=optimize)
    try:
        return not any(difference(got, wanted) for got, wanted in zip(given, probe.wanted, strict=True))
    except WorkerError:
        return False


def _runs(runner: Runner, model: bytes, inputs: dict[str, Any], *, optimize: bool = False) -> list[Any] | None:
    try:
        return next(runner.run_all(model, [inputs], optimize=optimize))
    except WorkerError:
        return None


def _gives(runner: Runner, model: bytes, inputs: dict[str, Any], wanted: Sequence[Any], *, optimize: bool) -> bool:
    """Whether a model runs, and gives what is wanted."""
    got = _runs(runner, model, inputs, optimize=optimize)
    return got is not None and not difference(got, wanted)


STRENGTH = (forms.NOT_RUN, forms.LIKE_THE_ORIGINAL, forms.RIGHT, forms.REWRITTEN, forms.WRONG)
"""Of two letters for one form the later counts."""


def recorded(tests: Sequence[str]) -> tuple[list[Probe], bool]:
    """The results of passes that tests compare, and whether all of the tests passed.

    Args:
        tests: Arguments of pytest.
    """
    recorder = Recorder()
    with (
        mock.patch.object(forms, "faults", lambda *_: []),  # the table is what is made anew
        mock.patch.object(testing, "verify", forms.checked(testing.verify, recorder.record)),
    ):
        status = pytest.main(["-q", "-p", "no:cacheprovider", "--no-header", *tests], plugins=[recorder])
    probes = list(recorder.probes.values())
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as here:
        for probe in probes:
            draw(probe, here)
    return probes, not status


def measured(release: str, probes: Sequence[Probe]) -> tuple[str, str, dict[str, str]]:
    """A release's version, the digest of its library, and what comes of each form there.

    Args:
        release: Major and minor version, or ``newest``.
        probes: What is run.
    """
    python, why = versions.runtime_environment(
        release, lambda command: subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    )
    if python is None:
        raise SystemExit(f"onnxruntime {release} cannot be installed: {why}")
    runtime = runtimes.find(python)
    version = runtime.name.split()[-1]
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder), runtime) as runner:
        found = of_release(version, probes, runner)
    print(version, dict(Counter(found.values())), flush=True)
    return version, library_digest(python), found


def of_release(version: str, probes: Sequence[Probe], runner: Runner) -> dict[str, str]:
    """What comes of each form on a release, as a letter of `fuzzing.forms`; what is wrong is printed.

    Args:
        version: The release.
        probes: What is run, where it is said to run there.
        runner: Runs models there.
    """
    found: dict[str, str] = {}
    for probe in probes:
        if not forms.meant(probe.needed, [version]):
            continue
        letter = outcome(probe, runner)
        if letter in (forms.WRONG, forms.REWRITTEN):
            print(f"{version}: {letter}: {probe.name}: {', '.join(sorted(probe.produced))}", flush=True)
        found |= {form: max(found.get(form, letter), letter, key=STRENGTH.index) for form in probe.produced}
    return found


def main() -> None:
    """Write what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tools.probe_forms", description=__doc__)
    parser.add_argument("--releases", help="e.g. 1.17,1.20,newest, from the oldest on; without it those of the table")
    parser.add_argument("--add", action="store_true", help="keep the table, and run what has a form that it lacks")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run tests, and then releases")
    parser.add_argument("tests", nargs="*", default=["tests/passes"], help="arguments of pytest: whose results are run")
    given = parser.parse_args()
    known: dict[str, Any] = json.loads(forms.PATH.read_text(encoding="utf-8"))
    names = given.releases.split(",") if given.releases else [name.rpartition(".")[0] for name in known["releases"]]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        files = _files(given.tests)
        batches = list(pool.map(recorded, [files[part :: given.jobs] for part in range(min(given.jobs, len(files)))]))
    probes = [probe for batch, _ in batches for probe in batch]
    if given.add:
        probes = [probe for probe in probes if not probe.produced <= known["forms"].keys()]
    listed = sorted({form for probe in probes for form in probe.produced})
    print(f"{len(probes)} results, of {len(listed)} forms", flush=True)
    with concurrent.futures.ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        rows = list(pool.map(functools.partial(measured, probes=probes), names))
    digests = {version: digest for version, digest, _ in rows}
    table = {form: "".join(found.get(form, forms.NOT_RUN) for _, _, found in rows) for form in listed}
    if given.add:
        if digests != known["releases"]:
            sys.exit(f"the table is of other releases: {', '.join(known['releases'])}")
        table |= known["forms"]
    data = {"releases": digests, "forms": dict(sorted(table.items()))}
    forms.PATH.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if not all(passed for _, passed in batches):
        sys.exit("tests fail: their results may be missing")


def _files(tests: Sequence[str]) -> list[str]:
    """The files of tests that folders hold, in a fixed order; the folders of examples among them."""
    found: list[str] = []
    for text in tests:
        path = Path(text)
        found += sorted(map(str, (*path.rglob("test_*.py"), *path.rglob("*.txt")))) if path.is_dir() else [text]
    return found


if __name__ == "__main__":
    main()
