"""The models of others are found, read from folders and archives, and what is wrong with a result is seen."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import onnx
import pytest

from fuzzing import foreign, oracle


def test_there_are_many_and_they_end_as_well_as_they_began() -> None:
    """One test, and nothing while tests are collected: onnx takes seconds to make its cases, in each process."""
    models = foreign.collection()
    assert len(models) > 2000
    assert len({one.label for one in models}) > 1900
    for number in range(0, len(models), len(models) // 8):
        assert foreign.examine(models[number])["found"] == []


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> m (float[2] x) => (float[2] y) { y = Abs (x) }'
    )


def test_models_in_folders_and_archives(tmp_path: Path) -> None:
    data = model().SerializeToString()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.onnx").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("inner/two.onnx", data)
    with tarfile.open(tmp_path / "three.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "sub" / "one.onnx", "three.onnx")
    found = list(foreign._files(tmp_path))
    assert [one.read() for one in found] == [data] * 3
    assert [one.label.rpartition("/")[2] for one in found] == ["one.onnx", "three.tar.gz:three.onnx", "two.onnx"]


@pytest.mark.parametrize(
    ("result", "kind"),
    [("y = Neg (x)", "differs"), ("z = Abs (x) y = Abs (w)", "unloadable"), ("y = mine.Abs (x)", "unloadable")],
)
def test_a_wrong_result_is_seen(result: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "mine" : 1]> m (float[2] x) => (float[2] y) {{ {result} }}'
    )
    monkeypatch.setattr(oracle, "optimized", lambda data, way: (wrong.SerializeToString(), []))
    (found,) = foreign.examine(foreign.Foreign("mine", model().SerializeToString, list))["found"]
    assert found.startswith(f"mine: {kind}")


def test_a_model_that_runs_and_is_refused_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: bytes, way: oracle.Way) -> tuple[bytes, list[str]]:
        raise oracle.OrtoptError("no")

    monkeypatch.setattr(oracle, "optimized", refuse)
    (found,) = foreign.examine(foreign.Foreign("mine", model().SerializeToString, list))["found"]
    assert found.startswith("mine: raises")
