"""The command that runs tests on several releases of ONNX Runtime: environments, what is skipped, what is a failure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tools import versions

ROOT = Path(__file__).parents[1]
Answer = Callable[[Sequence[str]], tuple[int, str, str]]


class Machine:
    """Answers commands, and notes them."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[list[str]] = []
        self._answer = answer

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append([*arguments])
        status, out, errors = self._answer(arguments)
        return subprocess.CompletedProcess([*arguments], status, out, errors)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without environments, and no Python but this one."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    monkeypatch.setattr(versions.shutil, "which", lambda name: None)
    return tmp_path


def works(arguments: Sequence[str]) -> tuple[int, str, str]:
    """All goes well."""
    if "venv" in arguments:
        Path(arguments[-1]).mkdir()
    if "-c" in arguments:
        release = Path(arguments[0]).parents[1].name.removeprefix(".venv-ort-")
        return 0, "9.9.9" if release == "newest" or arguments[0] == sys.executable else f"{release}.1", ""
    return 0, "", ""


def test_an_environment_has_the_dependencies_and_one_release() -> None:
    found = versions.requirements("1.20")
    assert [text for text in found if text.startswith("onnxruntime")] == ["onnxruntime==1.20.*"]
    assert {"onnx", "numpy", "pytest", "pytest-xdist"} <= {versions._name(text) for text in found}
    assert not any("mypy" in text for text in found)
    assert versions.requirements("newest")[-1] == "onnxruntime"


def test_each_release_is_run_in_an_environment_that_is_made_once(root: Path) -> None:
    machine = Machine(works)
    assert versions.main(["--releases", "1.20,newest,default", "some/test"], machine) == 0
    runs = [asked for asked in machine.asked if "pytest" in asked and "pip" not in asked]
    assert [run[0] for run in runs] == [
        str(root / ".venv-ort-1.20" / "bin" / "python"),
        str(root / ".venv-ort-newest" / "bin" / "python"),
        sys.executable,
    ]
    assert all("some/test" in run for run in runs)
    again = Machine(works)
    assert versions.main(["--releases", "1.20"], again) == 0
    assert not any("pip" in asked for asked in again.asked)


def test_what_cannot_be_installed_is_named_and_all_of_it_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def none_of_20(arguments: Sequence[str]) -> tuple[int, str, str]:
        return (1, "", "ERROR: no wheels\n") if "onnxruntime==1.20.*" in arguments else works(arguments)

    assert versions.main(["--releases", "1.20,newest"], Machine(none_of_20)) == 0
    assert "1.20     skipped  " in capsys.readouterr().out
    assert versions.main(["--releases", "1.20"], Machine(none_of_20)) == 1
    assert versions.main(["--releases", "1.20,default"], Machine(none_of_20)) == 1
    assert "ERROR: no wheels" in capsys.readouterr().out


def test_another_python_is_tried_where_this_one_has_no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_PYTHONS", ("python9.9",))
    monkeypatch.setattr(versions.shutil, "which", lambda name: f"/there/{name}")
    bases: list[str] = []

    def only_there(arguments: Sequence[str]) -> tuple[int, str, str]:
        if "venv" in arguments:
            bases.append(arguments[0])
        if "onnxruntime==1.20.*" in arguments and bases[-1] == sys.executable:
            return 1, "", "ERROR: no wheels"
        return works(arguments)

    assert versions.main(["--releases", "1.20"], Machine(only_there)) == 0
    assert bases == [sys.executable, "/there/python9.9"]


def test_tests_that_fail_and_another_release_than_asked_for_are_failures() -> None:
    def fails(arguments: Sequence[str]) -> tuple[int, str, str]:
        return (1, "", "") if "-q" in arguments else works(arguments)

    def other(arguments: Sequence[str]) -> tuple[int, str, str]:
        return (0, "1.31.1", "") if "-c" in arguments else works(arguments)

    assert versions.main(["--releases", "1.20,newest"], Machine(fails)) == 1
    assert versions.main(["--releases", "1.20"], Machine(other)) == 1


def test_what_is_run_is_there() -> None:
    for part in (*versions.PARTS, *versions.SMOKE):
        assert (ROOT / part).exists(), part
