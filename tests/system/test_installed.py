"""What is installed is read from folders' names; what they cannot tell is asked of `importlib.metadata`."""

import importlib.metadata
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from ortopt.system import installed


@pytest.fixture(autouse=True)
def _without_finders_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests import libraries that add finders of distributions, and take the one of Python's own away."""
    own = [finder for finder in sys.meta_path if finder is PathFinder or not hasattr(finder, "find_distributions")]
    monkeypatch.setattr(sys, "meta_path", own)
    find = importlib.metadata.MetadataPathFinder.find_distributions
    monkeypatch.setattr(PathFinder, "find_distributions", find, raising=False)


def distribution(folder: Path, name: str, metadata: str, entry_points: str = "") -> None:
    info = folder / name
    info.mkdir()
    (info / "METADATA").write_text(metadata)
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)


def test_as_importlib_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    distribution(tmp_path, "Some.Thing-1.0+cpu.dist-info", "Name: Some.Thing\nVersion: 1.0+cpu\n\nVersion: of a text\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/no/such/folder", *sys.path])
    names = ("some-thing", "onnx", "no-such-thing")
    assert installed.versions(names) == {"some-thing": "1.0+cpu", "onnx": importlib.metadata.version("onnx")}
    assert installed.stated_version("some_thing") == "1.0+cpu"
    assert installed.stated_version("no-such-thing") is None


def test_a_group_that_no_distribution_names_has_no_entry_points(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed.no_entry_points(group="a.group") == ()
    distribution(tmp_path, "thing-1.dist-info", "Name: thing\nVersion: 1\n", "[a.group]\nx = y:z\n")
    assert installed.no_entry_points(group="a.group") is None
    assert installed.no_entry_points(group="another") == ()


@pytest.mark.parametrize("name", ["old.egg-info", "Some.EGG-INFO", "zipped.egg", "ortopt.archive"])
def test_where_others_may_be_only_importlib_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    entry = tmp_path / name if name.endswith("archive") else tmp_path
    monkeypatch.setattr(sys, "path", [str(entry), *sys.path])
    assert installed.no_entry_points(group="a.group") is None
    assert installed.stated_version("onnx") is None
    assert installed.versions(("onnx", "no-such-thing")) == {"onnx": importlib.metadata.version("onnx")}


def test_a_finder_with_distributions_of_its_own_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        @staticmethod
        def find_spec(*_: object) -> None: ...

        @staticmethod
        def find_distributions(*_: object) -> tuple[()]:
            return ()

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert installed.no_entry_points(group="a.group") is None
    assert installed.versions(("onnx",)) == {"onnx": importlib.metadata.version("onnx")}


def test_a_description_without_a_version_is_left_to_importlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    distribution(tmp_path, "thing-1.dist-info", "Name: thing\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed.stated_version("thing") is None
