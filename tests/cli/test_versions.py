"""Which build of ONNX Runtime is installed, and what to do where two share its package; none is asked for by name."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from ortopt.analysis import providers
from ortopt.regression import facts
from ortopt.reporting import reproducer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The distributions that there seem to be."""
    found: dict[str, str] = {}
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in providers.DISTRIBUTIONS and name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


def check() -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        providers.check_installation.__wrapped__()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("names", [(), ("onnxruntime",), ("onnxruntime-openvino",)])
def test_one_build_is_right(installed: dict[str, str], names: tuple[str, ...]) -> None:
    installed.update(dict.fromkeys(names, "1.31"))
    assert check() == []


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (("onnxruntime", "onnxruntime-gpu"), "onnxruntime-gpu"),
        (("onnxruntime", "onnxruntime-directml"), "onnxruntime"),
        (("onnxruntime-openvino", "onnxruntime-qnn"), "onnxruntime-openvino"),
    ],
)
def test_two_builds_are_told_with_the_remedy(installed: dict[str, str], names: tuple[str, ...], kept: str) -> None:
    installed.update(dict.fromkeys(names, "1.31"))
    (told,) = check()
    assert told.startswith(f"{names[0]} and {names[1]} are installed over each other")
    assert told.endswith(f"pip uninstall -y {' '.join(names)} && pip install --no-deps {kept}")


def test_info_names_what_is_installed(ortopt: Any, installed: dict[str, str]) -> None:
    installed["onnxruntime"] = "1.30.0"
    data = json.loads(ortopt("info", "--versions", "--json").stdout)
    assert data["onnxruntime"]["distributions"] == {"onnxruntime": "1.30.0"}
    assert data["onnxruntime"]["remedy"] == ""
    assert "CPUExecutionProvider" in data["onnxruntime"]["providers"]
    assert data["packages"]["onnx"]
    installed["onnxruntime-gpu"] = "1.31.0"
    done = ortopt("info", "--versions")
    assert "onnxruntime 1.30.0, onnxruntime-gpu 1.31.0" in done.stdout
    assert "installed over each other" in done.stderr


@pytest.mark.parametrize("build", ["onnxruntime", "onnxruntime-openvino", ""])
def test_a_baseline_knows_the_release_whichever_build_has_brought_it(installed: dict[str, str], build: str) -> None:
    if build:
        installed[build] = "1.30.0"
    assert facts.versions()["onnxruntime"] == onnxruntime.__version__
    assert reproducer.versions()[build or "onnxruntime"] == ("1.30.0" if build else onnxruntime.__version__)
    assert not {"onnxruntime-gpu"} & reproducer.versions().keys()


def test_each_run_says_it(ortopt: Any, model: Path, installed: dict[str, str]) -> None:
    installed.update({"onnxruntime": "1.31", "onnxruntime-gpu": "1.31"})
    providers.check_installation.cache_clear()
    try:
        assert "installed over each other" in ortopt("optimize", model, "--no-verify").stderr
    finally:
        providers.check_installation.cache_clear()


def test_no_build_is_asked_for_by_its_name(model: Path, tmp_path: Path) -> None:
    """As after ``pip install --no-deps`` with a build of another name: no metadata of onnxruntime is there at all."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "def hidden(real):\n"
        "    def names(path='.'):\n"
        "        return [n for n in real(path) if not (n.startswith('onnxruntime') and n.endswith('.dist-info'))]\n"
        "    return names\n"
        "os.listdir = hidden(os.listdir)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "ortopt", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "by ONNX Runtime" in run("optimize", str(model), "-o", str(tmp_path / "out.onnx"))
    assert "a package that no distribution is known of" in run("info", "--versions")
