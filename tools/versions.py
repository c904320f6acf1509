"""Run the parts of the suite that use ONNX Runtime with several releases of it: ``python -m tools.versions``.

Each release has an environment of its own below the repository, ``.venv-ort-RELEASE``, made with venv and pip and kept:
the dependencies of pyproject.toml, and that release of ``onnxruntime``. The environment that runs this command is the
default one, and is run as it is. Where the running Python has no wheel of a release, other Pythons of this machine are
tried; a release that none of them can install is named as skipped. It is a failure if tests fail, and if every release
that was to be installed is skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ortopt.analysis.providers import OLDEST

ROOT: Final = Path(__file__).parents[1]
PARTS: Final = ("tests/runtime", "tests/verification", "tests/evaluation", "tests/analysis/test_releases.py")
SMOKE: Final = (
    "tests/runtime/test_onnxruntime_internals.py",
    "tests/runtime/values",
    "tests/runtime/test_models.py",
    "tests/runtime/onnxruntime_interface",
    "tests/verification/test_verify.py",
    "tests/verification/test_noise.py",
    "tests/evaluation",
    "tests/analysis/test_releases.py",
)
DEFAULT: Final = "default"
NEWEST: Final = "newest"
RELEASES: Final = (f"{OLDEST[0]}.{OLDEST[1]}", "1.23", "1.28", NEWEST, DEFAULT)
SMOKE_RELEASES: Final = (RELEASES[0], NEWEST)

_PYTHONS: Final = ("python3.11", "python3.12", "python3.13")
_TOOLS: Final = frozenset({"pytest", "pytest-xdist", "onnxscript", "packaging", "pyyaml", "distributed"})
"""What the tests need of the extra ``dev``."""


Command = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class Outcome(NamedTuple):
    """What came of a release.

    Attributes:
        release: The release that was asked for.
        status: ``passed``, ``failed`` or ``skipped``.
        told: The version that ran, or why there was none.
    """

    release: str
    status: str
    told: str


def requirements(release: str) -> list[str]:
    """What pip installs for a release: what ortopt and its tests need, and that release in the place of others.

    Args:
        release: Major and minor version, or `NEWEST`.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tools = [text for text in project["optional-dependencies"]["dev"] if _name(text) in _TOOLS]
    return [*project["dependencies"], *tools, _onnxruntime(release)]


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return found[0].lower()


def run(release: str, tests: Sequence[str], command: Command) -> Outcome:
    """Run tests with a release.

    Args:
        release: Major and minor version, `NEWEST`, or `DEFAULT`.
        tests: Arguments of pytest.
        command: Runs a program in the repository's root; its output is wanted where it fails.
    """
    python, why = (sys.executable, "") if release == DEFAULT else environment(release, command)
    if python is None:
        return Outcome(release, "skipped", why)
    asked = command([python, "-c", "import onnxruntime; print(onnxruntime.__version__)"])
    version = asked.stdout.strip()
    if asked.returncode or not (release in (DEFAULT, NEWEST) or version.startswith(f"{release}.")):
        return Outcome(release, "failed", f"{python} has ONNX Runtime {version or _last_line(asked)}")
    print(f"ONNX Runtime {version}: {python} -m pytest {' '.join(tests)}", flush=True)
    status = command([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]).returncode
    return Outcome(release, "failed" if status else "passed", version)


def environment(release: str, command: Command) -> tuple[str | None, str]:
    """The Python of a release's environment, which is made if it is not there; or None, and why there is none.

    Args:
        release: Major and minor version, or `NEWEST`.
        command: Runs a program.
    """
    return _environment(f".venv-ort-{release}", requirements(release), command, editable=True)


def runtime_environment(release: str, command: Command) -> tuple[str | None, str]:
    """The same with that release and numpy alone: what people deploy on, and what releases before `OLDEST` allow.

    Args:
        release: Major and minor version, or `NEWEST`.
        command: Runs a program.
    """
    return _environment(f".venv-runtime-{release}", [_onnxruntime(release), "numpy<2"], command, editable=False)


def _onnxruntime(release: str) -> str:
    return "onnxruntime" if release == NEWEST else f"onnxruntime=={release}.*"


def _environment(name: str, needed: Sequence[str], command: Command, *, editable: bool) -> tuple[str | None, str]:
    """The Python of an environment below the repository; or None, and why there is none.

    Args:
        name: Its folder.
        needed: What pip installs there.
        command: Runs a program.
        editable: Whether ortopt itself is installed, too.
    """
    folder = ROOT / name
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    stamp, wanted = folder / ".installed", "\n".join(needed)
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python, ""
    why = ""
    for base in _pythons():
        shutil.rmtree(folder, ignore_errors=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for step in (
            [base, "-m", "venv", str(folder)],
            [*pip, "--only-binary", "onnxruntime", *needed],
            *([[*pip, "--no-deps", "--editable", "."]] if editable else []),
        ):
            done = command(step)
            if done.returncode:
                why = why or f"{' '.join(step[:4])} …: {_last_line(done)}"
                break
        else:
            stamp.write_text(wanted, encoding="utf-8")
            return python, ""
    shutil.rmtree(folder, ignore_errors=True)
    return None, why


def _pythons() -> Iterator[str]:
    """The Python that runs this, and then others of this machine."""
    yield sys.executable
    for name in _PYTHONS:
        found = shutil.which(name)
        if found is not None and name != f"python{sys.version_info[0]}.{sys.version_info[1]}":
            yield found


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or "").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it failed"])[-1].strip()


def _command(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program here: pytest's output goes to the terminal, that of others is kept."""
    kept = "pytest" not in arguments
    return subprocess.run(arguments, cwd=ROOT, capture_output=kept, text=True, check=False)


def judged(outcomes: Sequence[Outcome]) -> int:
    """The exit status for what came of all releases.

    Args:
        outcomes: One for each.
    """
    installed = [outcome for outcome in outcomes if outcome.release != DEFAULT]
    if any(outcome.status == "failed" for outcome in outcomes):
        return 1
    return 1 if installed and all(outcome.status == "skipped" for outcome in installed) else 0


def main(arguments: Sequence[str] | None = None, command: Command = _command) -> int:
    """Run the command; its exit status.

    Args:
        arguments: The command line's.
        command: Runs a program.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.versions", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--releases", help=f"e.g. 1.20,newest; {','.join(RELEASES)} unless given")
    parser.add_argument("--smoke", action="store_true", help="the key tests on the oldest and the newest release")
    parser.add_argument("--jobs", default="2", help="processes of pytest-xdist")
    parser.add_argument("tests", nargs="*", help="tests to run instead")
    chosen = parser.parse_args(arguments)
    releases = chosen.releases.split(",") if chosen.releases else SMOKE_RELEASES if chosen.smoke else RELEASES
    tests = [*(chosen.tests or (SMOKE if chosen.smoke else PARTS)), "-n", chosen.jobs]
    outcomes = []
    for release in releases:
        outcomes.append(run(release, tests, command))
        print(f"{release}: {outcomes[-1].status} ({outcomes[-1].told})", flush=True)
    print("\n".join(["", *(f"{outcome.release:8} {outcome.status:8} {outcome.told}" for outcome in outcomes)]))
    return judged(outcomes)


if __name__ == "__main__":
    sys.exit(main())
