"""Without an ONNX Runtime, or with one that is too old: what needs none works, all else says in one line what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ortopt.analysis.providers import MISSING, OLDEST
from ortopt.serialization.save import save
from ortopt.testing import parse

pytestmark = pytest.mark.xdist_group("missing runtime")  # what they share is costly

ROOT = Path(__file__).parents[2]
MODEL = """
main (float[batch,8] x) => (float[batch,8] y) <float[8] w = {1,2,3,4,5,6,7,8}, float[2] two = {2,2}> {
    hidden = Identity (x)
    waves = Sin (w)
    four = Add (two, two)
    sum = ReduceSum <keepdims = 1> (four)
    scaled = Mul (hidden, waves)
    y = Mul (scaled, sum)
}"""
WORKS = (
    "--version",
    "--help",
    "optimize --help",
    "info model.onnx",
    "info --versions",
    "diff model.onnx model.onnx",
    "extract model.onnx --outputs hidden -o part.onnx",
    "explain model.onnx constant_folding",
    "explain model.onnx attention",
    "passes reshape",
    "costs show",
    "groups model.onnx --provider openvino,cpu",
    "zoo list",
    "optimize model.onnx -o small.onnx --no-verify",
    "optimize model.onnx -o grouped.onnx --no-verify -O4",
    "optimize model.onnx -o half.onnx --no-verify --float16",
    "optimize model.onnx -o other.onnx --no-verify --provider coreml",
)
NEEDS = (
    "optimize model.onnx -o not.onnx",
    "optimize model.onnx -o not.onnx --no-verify --tune",
    "optimize model.onnx -o not.onnx --no-verify --profile",
    "optimize model.onnx -o not.ort --no-verify",
    "verify model.onnx model.onnx",
    "bisect model.onnx",
    "run model.onnx",
    "bench model.onnx",
    "check model.onnx",
    "costs measure -o not.json",
)
PYTHON = {
    "optimize": "ortopt.optimize('model.onnx')",
    "session": "ortopt.InferenceSession('model.onnx')",
    "verify": "verify.verify('model.onnx', 'model.onnx')",
    "provider": "verify.verify('model.onnx', 'model.onnx', providers=['CoreMLExecutionProvider'])",
    "thorough": "ortopt.optimize('model.onnx', verify='thorough')",
}
SCRIPT = """
import json, sys, traceback
from click.testing import CliRunner
import ortopt
from ortopt.cli.group import commands
if {python!r}:
    from ortopt.verification import verify
answers = {{}}
for line in {lines!r}:
    done = CliRunner().invoke(commands, line.split())
    answers[line] = [done.exit_code, done.stdout, done.stderr]
for name, code in {python!r}.items():
    try:
        answers[name] = ["", str(eval(code))]
    except Exception as error:
        answers[name] = [type(error).__name__, str(error)]
answers["imported"] = "onnxruntime" in sys.modules
print(json.dumps(answers))
"""
HIDDEN = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def hidden(cls, name, path=None, target=None):
    return None if name.partition(".")[0] == "onnxruntime" else find(name, path, target)
PathFinder.find_spec = classmethod(hidden)
"""
OLD = '__version__ = "1.17.3"\nraise ImportError("it must not be imported")\n'
TOLD = {
    "missing": MISSING,
    "old": f"ONNX Runtime 1.17.3 is installed, and ortopt needs {OLDEST[0]}.{OLDEST[1]} or newer",
}


@pytest.fixture(scope="module", params=["missing", "old"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def answers(kind: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every line printed, and its exit code: in one process, in which ONNX Runtime is not there or is old."""
    folder = tmp_path_factory.mktemp(kind)
    packages = folder / "packages"
    packages.mkdir()
    if kind == "missing":
        (packages / "sitecustomize.py").write_text(HIDDEN)
        (packages / "onnxruntime").mkdir()  # what an uninstalled build may leave behind
    else:
        (packages / "onnxruntime").mkdir()
        (packages / "onnxruntime" / "__init__.py").write_text(OLD)
    save(parse(MODEL), folder / "model.onnx")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])}
    script = SCRIPT.format(lines=[*WORKS, *NEEDS], python=PYTHON)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["written"] = sorted(path.name for path in folder.glob("*.*"))
    return found


@pytest.mark.parametrize("line", WORKS)
def test_what_needs_none_works(line: str, answers: dict[str, Any], kind: str) -> None:
    code, shown, told = answers[line]
    assert code == 0, told
    assert shown
    runs_without = line.startswith("optimize model")
    lines = [one for one in told.splitlines() if "onnxruntime is not" not in one]
    assert [one for one in lines if TOLD[kind] in one] == lines[:runs_without], told


@pytest.mark.parametrize("line", NEEDS)
def test_what_runs_models_says_what_to_install_in_one_line(line: str, answers: dict[str, Any], kind: str) -> None:
    code, shown, told = answers[line]
    assert code == 1
    assert shown == ""
    assert told.startswith(f"ortopt: {TOLD[kind]}")
    assert told.count("\n") == 1
    assert ("--no-verify" in told) == (line == NEEDS[0])


@pytest.mark.parametrize("name", PYTHON)
def test_in_python_it_is_an_error_of_its_own(name: str, answers: dict[str, Any], kind: str) -> None:
    assert answers[name] == ["MissingRuntimeError", TOLD[kind]]


def test_constants_are_folded_as_far_as_numpy_computes_them(answers: dict[str, Any]) -> None:
    shown = answers["explain model.onnx constant_folding"][1]
    assert "refused: it could not be evaluated" in shown
    assert "Sin waves" in shown


def test_nothing_was_written_but_results_and_nothing_was_imported(answers: dict[str, Any]) -> None:
    assert not answers["imported"]
    made = {"small.onnx", "grouped.onnx", "half.onnx", "other.onnx", "part.onnx"}
    assert set(answers["written"]) == {"model.onnx"} | made


def test_the_versions_say_it(answers: dict[str, Any], kind: str) -> None:
    shown = " ".join(answers["info --versions"][1].split())
    assert f"ONNX Runtime {TOLD[kind].partition(', ')[0]}" in shown
