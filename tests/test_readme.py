"""What the README and the pages that it links to show works as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ortopt.analysis.providers import OLDEST
from ortopt.cli import group
from ortopt.serialization.save import save
from ortopt.testing import parse

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODEL = """
main (float[batch,8] x) => (float[one,four] y) <float[4] w = {1,2,3,4}> {
    hidden = Identity (x)
    s = ReduceSum <keepdims = 1> (hidden)
    y = Mul (s, w)
}"""


GROUPS, RUNTIME = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("groups.md", "runtime.md"))


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Those of the README, and those of other pages for the CPU that take no minute."""
    shown = [line for block in blocks("console") for line in block.splitlines()]
    shown += [
        line for line in "".join(blocks("console", RUNTIME)).splitlines() if " run " in line and "cuda" not in line
    ]
    return [line[2:] for line in shown if line.startswith("$ ortopt ")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(parse(MODEL), tmp_path / "model.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((2, 8), np.float32))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    """Where `ortopt` is this ortopt, and the zoo grows into the test's own folder."""
    return os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}


def test_it_opens_with_the_two_commands() -> None:
    assert README.index("make demo") < README.index("make test") < README.index("pip install")


@pytest.mark.parametrize(
    "block", blocks("python") + blocks("python", GROUPS), ids=["api", "runtime", "transformer", "groups"]
)
def test_python_blocks_run(block: str, folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", block]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def is_for_a_shell(line: str) -> bool:
    """Whether a line has more in it than one command and its arguments."""
    return bool({"<", ">", "|", "&&"} & set(shlex.split(line, comments=True)))


@pytest.mark.parametrize("line", [line for line in dict.fromkeys(commands()) if not is_for_a_shell(line)])
@pytest.mark.usefixtures("models_run_here")
def test_a_command_runs(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    _, *arguments = shlex.split(line, comments=True)
    done = CliRunner().invoke(group.commands, arguments)
    check(done.exit_code, done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="the lines are for a POSIX shell")
@pytest.mark.parametrize("line", [line for line in dict.fromkeys(commands()) if is_for_a_shell(line)])
def test_a_line_for_a_shell_runs(line: str, folder: Path) -> None:
    script = f'ortopt() {{ "{sys.executable}" -m ortopt "$@"; }}\n{line}'
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    check(done.returncode, done.stderr)


def check(code: int, told: str) -> None:
    assert code == 0, told
    warnings = [line for line in told.splitlines() if "warning" in line]
    assert [line for line in warnings if "CUDAExecutionProvider does not work here" not in line] == []


def test_the_entry_point_is_the_registrys() -> None:
    from ortopt.registry import ENTRY_POINTS

    (block,) = blocks("toml")
    assert set(tomllib.loads(block)["project"]["entry-points"]) == {ENTRY_POINTS}


def test_the_exit_codes_are_the_errors() -> None:
    from ortopt import errors

    told = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    kinds = (getattr(errors, name) for name in errors.__all__)
    assert told == {0} | {kind.exit_code for kind in kinds if issubclass(kind, errors.OrtoptError)}


def test_the_sample_is_what_the_command_prints() -> None:
    from tools.document_sample import sample, shown, words

    now = sample()
    assert words(shown()) == words(now), "python -m tools.document_sample writes it anew"
    assert counts(shown()) == counts(now), "python -m tools.document_sample writes it anew"


def counts(report: str) -> list[str]:
    """The numbers of a report that are the same in every run."""
    return [
        part for line in report.splitlines() if line.startswith(("nodes", "fused", "fewer")) for part in line.split()
    ]


def test_the_installation_begins_with_the_extra_for_the_gpu_and_says_the_oldest_onnxruntime() -> None:
    assert re.findall(r"pip install [^\s`]+", README)[0] == "pip install 'ortopt[gpu]'"
    assert re.findall(r"pip install [^\s`]+", README.partition("## Installation")[2])[0] == "pip install 'ortopt[gpu]'"
    for text in (README, (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")):
        assert f"from version {'.'.join(map(str, OLDEST))} on" in text.replace("ONNX Runtime", "version")


def test_a_model_is_exported_in_one_line(folder: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch (extra: exports) is not installed")
    (line,) = re.findall(r"""^    python (-c "import torch.*?")$""", README.replace("\\\n", ""), re.MULTILINE)
    (folder / "model.onnx").unlink()
    for arguments in (shlex.split(line), ["-m", "ortopt", "optimize", "model.onnx"]):
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "by ONNX Runtime" in " ".join(done.stdout.split())
