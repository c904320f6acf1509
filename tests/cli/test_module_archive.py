"""Modules come out of the archive as from their sources, and only while these are what they were."""

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from ortopt.cli import module_archive
from ortopt.cli.module_archive import FORMAT, Archive, use_archive


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "sources" / "archived_example"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "inner" / "__init__.py").write_text("value = 1\n")
    (folder / "inner" / "leaf.py").write_text('"""A leaf."""\n\n\ndef fail():\n    raise ValueError("here")\n')
    (folder / "other.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(module_archive, "WORTH_WRITING", 3)
    monkeypatch.setattr(module_archive, "_OURS", "archived_example.")
    monkeypatch.setattr(module_archive, "_declared", lambda: {"a_pass": {"roots": ("Add",)}})
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
    imported = module_archive._imported

    def of_the_example() -> tuple[dict[str, tuple[str, str, bool]], int]:
        found, others = imported()
        return {name: source for name, source in found.items() if name.startswith("archived_example.")}, others

    with monkeypatch.context() as patch:
        patch.setattr(module_archive, "_imported", of_the_example)
        load()
        Archive(str(tmp_path / "archive")).update()
    forget()
    yield folder
    forget()


def load() -> None:
    for name in ("", ".inner", ".inner.leaf", ".other"):
        importlib.import_module(f"archived_example{name}")


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("archived_example")]:
        del sys.modules[name]


def spec_of(archive: Archive, name: str) -> object:
    package = importlib.import_module(name.rpartition(".")[0])
    return archive.find_spec(name, list(package.__path__))


@pytest.fixture
def archive(package: Path, tmp_path: Path) -> Archive:
    return Archive(str(tmp_path / "archive"))


NAMES = ("archived_example.inner", "archived_example.inner.leaf", "archived_example.other")


def test_modules_are_as_from_their_sources(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    usual = {name: vars(sys.modules[name]).copy() for name in NAMES}
    forget()
    monkeypatch.setattr(sys, "meta_path", [archive, *sys.meta_path])
    load()
    for name in NAMES:
        module = sys.modules[name]
        assert type(module.__loader__).__name__ == "_Loader"
        for item in ("__file__", "__cached__", "__name__", "__package__", "__doc__"):
            assert getattr(module, item) == usual[name][item], item
        assert getattr(module, "__path__", None) == usual[name].get("__path__")
    leaf = sys.modules["archived_example.inner.leaf"]
    assert "raise ValueError" in inspect.getsource(leaf)
    with pytest.raises(ValueError, match="here") as caught:
        leaf.fail()
    assert Path(caught.traceback[-1].path) == Path(str(leaf.__file__))


def test_what_is_in_no_package_is_not_in_it(archive: Archive) -> None:
    assert set(archive.entries) == set(NAMES)
    assert "archived_example" not in archive.entries
    assert archive.find_spec("archived_example", None) is None
    assert archive.find_spec("archived_example.absent", [str(next(iter(archive.times)))]) is None


def test_a_source_of_another_time_is_imported_as_always(package: Path, archive: Archive) -> None:
    source = package / "other.py"
    source.write_text("value = 4\n")
    os.utime(source, (1, 1))
    assert spec_of(archive, "archived_example.other") is None
    assert spec_of(archive, "archived_example.inner") is not None


def test_a_source_of_another_size_is_imported_as_always(package: Path, archive: Archive) -> None:
    source = package / "other.py"
    before = source.stat()
    source.write_text("value = 10\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert spec_of(archive, "archived_example.other") is None


def test_a_folder_in_which_a_file_came_or_went_is_searched(package: Path, archive: Archive) -> None:
    (package / "inner" / "leaf.so").write_text("")  # goes before leaf.py
    assert spec_of(archive, "archived_example.inner.leaf") is None
    assert spec_of(archive, "archived_example.inner") is None
    assert spec_of(archive, "archived_example.other") is not None


def test_a_module_that_is_gone_is_not_found(package: Path, archive: Archive) -> None:
    (package / "other.py").unlink()
    with pytest.raises(ImportError):
        importlib.import_module("archived_example.other")
    assert spec_of(archive, "archived_example.other") is None


def test_the_same_name_in_another_folder_is_another_module(package: Path, archive: Archive) -> None:
    assert archive.find_spec("archived_example.other", [str(package / "inner")]) is None
    assert archive.find_spec("archived_example.other", [str(package), str(package / "inner")]) is None


@pytest.mark.parametrize("content", [b"", FORMAT, FORMAT + bytes(8), FORMAT + b"\xff" * 8, b"another\n" * 9])
def test_what_is_no_archive_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "archive").write_bytes(content)
    assert Archive(str(tmp_path / "archive")).entries == {}
    assert Archive(str(tmp_path / "absent")).entries == {}


def test_an_archive_that_was_cut_leads_back_to_the_source(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "archive"
    path.write_bytes(path.read_bytes()[: archive._start + 5])
    monkeypatch.setattr(sys, "meta_path", [Archive(str(path)), *sys.meta_path])
    load()
    assert sys.modules["archived_example.other"].value == 3


def test_it_is_written_where_enough_is_new_only(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "archive"
    before = path.stat()

    def update(asked: int, imported: int) -> Archive:
        monkeypatch.setattr(module_archive, "_imported", lambda: ({}, imported))
        archive = Archive(str(path))
        for number in range(asked):
            assert archive.find_spec(f"archived_example.absent{number}", [str(package)]) is None
        archive.update()
        return Archive(str(path))

    update(3, 2)
    update(2, 3)
    assert path.stat() == before
    assert update(3, 3).entries.keys() == set(NAMES)  # the unchanged ones stay
    assert path.stat() != before
    (package / "other.py").write_text("value = 10\n")
    assert update(3, 3).entries.keys() == {*NAMES} - {"archived_example.other"}
    path.unlink()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    update(3, 3)
    assert not path.exists()


def test_declarations_hold_while_no_source_has_changed(package: Path, archive: Archive, tmp_path: Path) -> None:
    assert archive.valid_declarations() == {"a_pass": {"roots": ("Add",)}}
    os.utime(package / "other.py", (1, 1))
    changed = Archive(str(tmp_path / "archive"))
    assert changed.valid_declarations() == {}
    changed.update()  # writes though few modules are new
    assert Archive(str(tmp_path / "archive")).valid_declarations() == {"a_pass": {"roots": ("Add",)}}


def test_a_new_pass_ends_the_declarations(package: Path, tmp_path: Path) -> None:
    (package / "new.py").write_text("")
    assert Archive(str(tmp_path / "archive")).valid_declarations() == {}


def test_a_folder_that_cannot_be_written_changes_nothing(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_archive, "_imported", lambda: ({}, 3))
    archive.path = "/no/such/folder/archive"
    archive.declarations = {}  # asks for a new one
    archive.update()


def test_where_others_take_part_in_imports_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path_hooks", [lambda _: None, *sys.path_hooks])
    assert use_archive() is None
    monkeypatch.undo()
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder is not PathFinder])
    assert use_archive() is None


def test_the_command_line_takes_it() -> None:
    code = (
        "import sys\nsys.argv = ['ortopt', '--version']\n"
        "import atexit\n"
        "atexit.register(lambda: print([type(f).__name__ for f in sys.meta_path].count('Archive')))\n"
        "from ortopt.cli import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "1"
