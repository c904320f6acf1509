"""docs/ci.md: what it shows works as it stands there; the action, the hook and the jobs call what exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ortopt.cli.group import commands
from ortopt.regression import formats, manifest, thresholds

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
STEP = re.compile(r"^<!-- (run|exit): (.*?) -->$|^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODELS_OF_GUIDE = {"gelu": "classifier", "abs": "detector", "relu": "tagger"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def masked(text: str) -> set[str]:
    """Lines without what is measured."""
    return {re.sub(r"error [\d.e-]+|\d+(\.\d+)? s\b", "-", line).rstrip() for line in text.splitlines() if line.strip()}


def test_the_walk_through(check: Any, zoo: Path) -> None:
    zoo.rename("models")
    for old, new in MODELS_OF_GUIDE.items():
        Path(f"models/{old}.onnx").rename(f"models/{new}.onnx")
    code = 0
    for kind, what, block in STEP.findall(GUIDE):
        if kind == "run":
            subprocess.run(["/bin/sh", "-c", what], check=True)
        elif kind == "exit":
            code = int(what)
        else:
            walk(check, block, code)
            code = 0


def walk(check: Any, block: str, code: int) -> None:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        words = shlex.split(line)
        if words[:2] != ["ortopt", "check"]:
            continue
        done = check(*words[2:], code=code)
        assert masked(done.stdout) == masked(expected), line


def test_the_tables_are_the_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| .+ \|$", GUIDE, re.MULTILINE)
    assert dict(rows) == {name: str(threshold) for name, threshold in thresholds.DEFAULTS.items()}


def test_the_manifests_are_read(tmp_path: Path) -> None:
    assert len(blocks("toml")) == 2
    for block in blocks("toml"):
        tomllib.loads(block)
        (tmp_path / manifest.NAME).write_text(block)
        assert manifest.read(tmp_path / manifest.NAME).rules


def lines_of(data: Any) -> list[str]:
    """All texts in a document."""
    if isinstance(data, dict):
        return [line for value in data.values() for line in lines_of(value)]
    if isinstance(data, list):
        return [line for value in data for line in lines_of(value)]
    return str(data).splitlines()


def test_the_jobs_call_what_exists() -> None:
    documents = [yaml.safe_load(block) for block in blocks("yaml")]
    called = [line for document in documents for line in lines_of(document) if line.startswith("ortopt ")]
    assert len(called) == 3
    for line in called:
        words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "1", line))
        command = commands.get_command(click.Context(commands), words[1])
        assert command is not None
        command.make_context(words[1], words[2:], parent=click.Context(commands))


def test_the_hook() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["entry"] == "ortopt check"
    assert re.search(hook["files"], "models/a.onnx")
    (told,) = (yaml.safe_load(block) for block in blocks("yaml") if "hooks:" in block)
    assert told["repos"][0]["hooks"][0]["id"] == hook["id"]


@pytest.mark.skipif(sys.platform == "win32", reason="the action's steps are for bash")
@pytest.mark.parametrize(("runtime", "more"), [("onnxruntime==1.31.*", ["onnxruntime==1.31.*"]), ("", [])])
def test_the_action_installs_the_runtime_that_is_named_or_none(tmp_path: Path, runtime: str, more: list[str]) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert action["inputs"]["runtime"]["default"] == "onnxruntime"
    (step,) = (step for step in action["runs"]["steps"] if step.get("name") == "Install ortopt")
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > called\n')
    fake.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PACKAGE": "/a folder/ortopt",
        "RUNTIME": runtime,
    }
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "called").read_text().splitlines()[5:] == ["/a folder/ortopt", *more]


@pytest.mark.skipif(sys.platform == "win32", reason="the action's steps are for bash")
@pytest.mark.parametrize("code", [0, 3])
def test_the_action(tmp_path: Path, code: int) -> None:
    """Its step passes words on, writes the summary, and ends as the check did."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    (step,) = (step for step in action["runs"]["steps"] if step.get("name") == "ortopt check")
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"] if "run" in step)
    assert not any("${{" in step.get("run", "") for step in action["runs"]["steps"])  # what is a word stays one
    fake = tmp_path / "ortopt"
    fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > called\necho "## told" > ortopt-check.md\nexit {code}\n')
    fake.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "ZOO": "models/*.onnx $(touch hacked)",
        "BASELINE": "a b.json",
        "ARGUMENTS": "--jobs 2",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == code
    called = (tmp_path / "called").read_text().splitlines()
    assert called[:7] == ["check", "models/*.onnx", "$(touch", "hacked)", "--jobs", "2", "--baseline"]
    assert called[7] == "a b.json"
    assert (tmp_path / "summary.md").read_text() == "## told\n"
    assert not (tmp_path / "hacked").exists()
    assert set(action["outputs"]) == {"junit", "json", "markdown"}
    assert action["outputs"]["json"]["value"] in called


FAKE_GH = """#!/bin/sh
printf '%s\\n' "$@" >> called
case "$*" in
  *--paginate*) printf "$FOUND"; exit "$READ" ;;
  *) exit "$WRITTEN" ;;
esac
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the action's steps are for bash")
@pytest.mark.parametrize(
    ("environment", "called", "says"),
    [
        ({"FOUND": ""}, ["--method", "POST", "repos/o/r/issues/7/comments"], ""),
        ({"FOUND": "11\\n12\\n"}, ["--method", "PATCH", "repos/o/r/issues/comments/11"], ""),
        ({"READ": "1"}, [], "::warning::the comments cannot be read"),
        ({"WRITTEN": "1"}, ["--method", "POST", "repos/o/r/issues/7/comments"], "::warning::the comment cannot be"),
    ],
)
def test_the_comment_of_the_action(tmp_path: Path, environment: dict[str, str], called: list[str], says: str) -> None:
    """It is made once for each zoo and changed afterwards; without the permission the check ends as it did."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    (step,) = (step for step in action["runs"]["steps"] if step.get("name") == "Comment")
    fake = tmp_path / "gh"
    fake.write_text(FAKE_GH)
    fake.chmod(0o755)
    (tmp_path / "ortopt-check.md").write_text("## told\n")
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "ZOO": "models $(touch hacked)",
        "COMMENTS": "repos/o/r/issues/7/comments",
        "EDITED": "repos/o/r/issues/comments",
        **{"FOUND": "", "READ": "0", "WRITTEN": "0"},
        **environment,
    }
    assert step["env"].keys() - {"GH_TOKEN"} == environment.keys() & step["env"].keys()
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    words = (tmp_path / "called").read_text().splitlines()
    assert words[: words.index("--jq")] == ["api", "--paginate", "repos/o/r/issues/7/comments?per_page=100"]
    written = words[words.index("--jq") + 2 :]
    assert written == (["api", "--silent", *called, "--field", "body=@ortopt-comment.md"] if called else [])
    assert done.stdout.startswith(says)
    mark, rest = (tmp_path / "ortopt-comment.md").read_text().split("\n", 1)
    assert rest == "## told\n"
    assert re.fullmatch(r"<!-- ortopt check [0-9a-f]{16} -->", mark)
    assert len(mark) + 1 + formats.LIMIT <= 65_536
    assert f'startswith("{mark}")' in words[words.index("--jq") + 1]
    assert not (tmp_path / "hacked").exists()
