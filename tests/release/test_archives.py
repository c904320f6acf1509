"""The archives of a release: the same bytes wherever they are built, and nothing in them that does not belong there."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
LEFTOVERS = shutil.ignore_patterns(".git", ".venv*", "*_cache", "__pycache__", "build", "dist", "site", "demo", "*-out")
TOPS = {
    "wheel": {"ortopt"},
    "zoo wheel": {"ortopt_zoo"},
    "sdist": {
        *("ortopt", "transformers", "report", "docs", "pyproject.toml", "PKG-INFO", ".gitignore"),
        *("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    },
    "zoo sdist": {"pyproject.toml", "PKG-INFO", ".gitignore", "README.md", "LICENSE", "manifest.json", "blocks.json"},
}


def built(project: Path, mask: int) -> dict[str, str]:
    """SHA-256 of all archives by name, as a copy of this checkout gives them whose files have other times and modes."""
    shutil.copytree(ROOT, project, symlinks=True, ignore=LEFTOVERS)
    for path in project.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o666 & ~mask)
            os.utime(path, (1_000_000_000 + mask, 1_000_000_000 + mask))
    for arguments in ([], ["models"]):
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", *arguments]
        done = subprocess.run(command, cwd=project, umask=mask, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return digests((project / "dist").iterdir())


def digests(paths: object) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}  # type: ignore[attr-defined]


def test_they_have_the_same_bytes_when_they_are_built_again(archives: dict[str, Path], tmp_path: Path) -> None:
    """Twice, from copies in other folders; `build` makes the wheels of the sdists, which are complete, therefore."""
    released = digests(archives.values())
    assert built(tmp_path / "a" / "first", 0o022) == released
    assert built(tmp_path / "second", 0o077) == released


def test_the_wheel_of_a_checkout_is_that_of_the_sdist(archives: dict[str, Path], tmp_path: Path) -> None:
    for folder, kind in ((ROOT, "wheel"), (ROOT / "models", "zoo wheel")):
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / kind, folder]
        subprocess.run(command, check=True, capture_output=True)
        assert digests((tmp_path / kind).iterdir()) == digests([archives[kind]])


def members(path: Path) -> dict[str, bool]:
    """What is in an archive, folders apart: whether it is a plain file, by its name below the archive's own folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            found = {item.filename: (item.external_attr >> 28) in (0, 8) for item in wheel.infolist()}
        return {name: plain for name, plain in found.items() if ".dist-info/" not in name}
    with tarfile.open(path) as sdist:
        return {item.name.partition("/")[2]: item.isreg() for item in sdist.getmembers() if not item.isdir()}


@pytest.mark.parametrize("kind", TOPS)
def test_they_hold_what_belongs_there(archives: dict[str, Path], kind: str) -> None:
    found = members(archives[kind])
    assert all(found.values()), "a link"
    models = {name for name in found if name.endswith(".onnx")}
    assert {PurePosixPath(name).parts[0] for name in found.keys() - models} == TOPS[kind]
    expected = {path.name for path in (ROOT / "models").glob("*.onnx")} if "zoo" in kind else set()
    assert {PurePosixPath(name).name for name in models} == expected
    strange = {"tests", "fuzzing", "benchmarks", "tools", "node_modules", "__pycache__", "baseline.json"}
    assert not [name for name in found if strange & {*PurePosixPath(name).parts}]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a checkout knows what is tracked")
def test_the_wheel_is_what_is_tracked(archives: dict[str, Path]) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "ortopt", "transformers"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tracked = {
        f"ortopt/{name}" if name.startswith("transformers/") else name
        for name in listed.stdout.splitlines()
        if name != "ortopt/transformers"
    }
    assert members(archives["wheel"]).keys() == tracked


def test_their_metadata_are_in_order(archives: dict[str, Path]) -> None:
    try:
        importlib.metadata.version("twine")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("twine (extra: release) is not installed")
    command = [sys.executable, "-m", "twine", "check", "--strict", *archives.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == len(archives)
