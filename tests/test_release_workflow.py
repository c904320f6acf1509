"""The workflow of releases: what it runs is there, and no step has more rights than it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ortopt import __version__

yaml = pytest.importorskip("yaml", reason="PyYAML (extra: dev) is not installed")
ROOT = Path(__file__).parents[1]
PATH = ROOT / ".github" / "workflows" / "release.yml"


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))["jobs"]
    return found


def steps(job: dict[str, Any], action: str) -> list[dict[str, Any]]:
    return [step["with"] for step in job["steps"] if step.get("uses", "").startswith(action)]


def test_it_runs_on_tags_alone_and_what_is_a_word_stays_one(jobs: dict[str, Any]) -> None:
    whole = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    assert whole[True] == {"push": {"tags": ["v*"]}}  # YAML reads "on" as true
    assert not any("${{" in step.get("run", "") for job in jobs.values() for step in job["steps"])


def test_only_what_publishes_may_ask_for_an_identity(jobs: dict[str, Any]) -> None:
    assert yaml.safe_load(PATH.read_text(encoding="utf-8"))["permissions"] == {}
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
        "documentation": {"contents": "read", "pages": "write", "id-token": "write"},
    }
    assert "password" not in PATH.read_text(encoding="utf-8")
    assert not [step for step in jobs["publish"]["steps"] if "run" in step], "nothing of ours runs with that right"


def test_what_was_checked_is_what_is_published(jobs: dict[str, Any]) -> None:
    assert any("make release-check" in step.get("run", "") for step in jobs["build"]["steps"])
    kept = {step["name"]: step["path"] for step in steps(jobs["build"], "actions/upload-artifact")}
    assert kept == {"ortopt": "dist/ortopt-*", "ortopt-zoo": "dist/ortopt_zoo-*"}
    assert jobs["publish"]["needs"] == "build"
    assert set(jobs["publish"]["strategy"]["matrix"]["project"]) == set(kept)
    assert steps(jobs["publish"], "actions/download-artifact") == [{"name": "${{ matrix.project }}", "path": "dist"}]


def test_its_pythons_are_the_oldest_and_the_newest(jobs: dict[str, Any]) -> None:
    source = (ROOT / "tests" / "release" / "test_installation.py").read_text(encoding="utf-8")
    (pythons,) = re.findall(r"^PYTHONS = \((.*)\)$", source, re.MULTILINE)
    (setup,) = steps(jobs["build"], "actions/setup-python")
    assert set(setup["python-version"].split()) == set(re.findall(r"[\d.]+", pythons))


def test_its_targets_are_those_of_the_makefile(jobs: dict[str, Any]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = {target for run in runs for target in re.findall(r"\bmake ([a-z-]+)", run)}
    assert targets == {"release-check", "docs"}
    for target in targets:
        assert re.search(rf"^{target}:.* ## ", makefile, re.MULTILINE)
    assert all(re.search(rf"^{name} \?=", makefile, re.MULTILINE) for name in ("PYTHON", "RUNTIME"))


@pytest.mark.parametrize(("tag", "code"), [(f"v{__version__}", 0), ("v9.9.9", 1), (__version__, 1)])
def test_a_tag_of_another_version_stops_it(jobs: dict[str, Any], tag: str, code: int) -> None:
    (step,) = (step for step in jobs["build"]["steps"] if "TAG" in step.get("env", {}))
    script = f'python() {{ "{sys.executable}" "$@"; }}\n{step["run"]}'
    done = subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env={**os.environ, "TAG": tag}, check=False)
    assert done.returncode == code
