"""Folders of models, as Optimum exports them: in place, into another folder, and left alone where anything fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortopt import InferenceSession, VerificationError
from ortopt.errors import InvalidModelError, UsageError
from ortopt.integrations.optimum import optimize_folder
from ortopt.optimization.run import Optimization
from ortopt.serialization.save import save
from ortopt.testing import parse

pytestmark = pytest.mark.usefixtures("models_run_here")

WEIGHTS = ", ".join(map(str, range(64 * 64)))
MODEL = f"""main (float[N,64] x) => (float[N,64] y) <float[64,64] w = {{{WEIGHTS}}}> {{
    i = Identity (x) m = MatMul (i, w) y = Relu (m) }}"""
X = np.ones((2, 64), np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models that share a file of weights, and one below, with what stands beside them."""
    root = tmp_path / "exported"
    (root / "more").mkdir(parents=True)
    for name in ("encoder.onnx", "decoder.onnx", "more/model.onnx"):
        save(parse(MODEL), root / name)
    for name in ("encoder.onnx", "decoder.onnx"):
        proto = onnx.load(root / name)
        (root / "weights").unlink(missing_ok=True)
        onnx.save(proto, root / name, save_as_external_data=True, location="weights", size_threshold=0)
    for name in ("config.json", "tokenizer.json", "vocab.txt"):
        (root / name).write_text(name)
    (root / "notes.md").write_text("of a person")
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


def computed(path: Path) -> Any:
    with InferenceSession(path) as session:
        return session.run(None, {"x": X})[0]


def test_in_place_every_model_is_optimized_and_nothing_else_changes(folder: Path) -> None:
    before, want = contents(folder), computed(folder / "encoder.onnx")
    results = optimize_folder(folder, level=1)
    assert [path.relative_to(folder).as_posix() for path in results] == [
        "decoder.onnx",
        "encoder.onnx",
        "more/model.onnx",
    ]
    assert all(result.verified for result in results.values())
    for path in results:
        assert ops(path) == ["MatMul", "Relu"]
        np.testing.assert_array_equal(computed(path), want)
    after = contents(folder)
    data = [name for name in after if name.endswith(".data")]
    assert sorted(name.split(".")[0] for name in data) == ["decoder", "encoder"], "weights stay beside the models"
    assert after.keys() - data == before.keys() - {"weights"}, "the weights that nothing needs any more are gone"
    assert {name: after[name] for name in before if not name.endswith((".onnx", "weights"))} == {
        name: text for name, text in before.items() if not name.endswith((".onnx", "weights"))
    }


def test_a_second_run_in_place_changes_no_byte(folder: Path) -> None:
    optimize_folder(folder)
    before = contents(folder)
    optimize_folder(folder)
    assert contents(folder) == before


def test_weights_that_a_model_still_needs_stay(folder: Path) -> None:
    optimize_folder(folder, level=1, external_data="auto")
    save(parse(MODEL), folder / "more" / "model.onnx", external_data="copy")
    (data,) = (folder / "more").glob("*.data")
    optimize_folder(folder / "more", level=0)
    assert [path.name for path in (folder / "more").glob("*.data")] == [data.name], "the same weights: the same file"
    assert computed(folder / "more" / "model.onnx").shape == (2, 64)


def test_another_folder_gets_the_results_and_what_stands_beside_the_models(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    results = optimize_folder(str(folder), str(tmp_path / "new" / "out"), level=1, verify=False, external_data="inline")
    out = tmp_path / "new" / "out"
    assert contents(folder) == before
    assert {path.relative_to(out).as_posix() for path in results} == {name for name in before if name.endswith(".onnx")}
    assert contents(out).keys() == before.keys() - {"weights", "notes.md"}
    assert (out / "vocab.txt").read_text() == "vocab.txt"


def test_results_inside_the_folder_are_no_models_of_it(folder: Path) -> None:
    for _ in range(2):
        results = optimize_folder(folder, folder / "optimized", level=1, verify=False)
        assert len(results) == 3


def test_a_broken_model_leaves_all_as_it_was(folder: Path) -> None:
    (folder / "z_broken.onnx").write_bytes(b"nothing")
    before = contents(folder)
    with pytest.raises(InvalidModelError, match=r"z_broken\.onnx"):
        optimize_folder(folder, level=1)
    assert contents(folder) == before


def test_a_result_that_differs_leaves_all_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(folder)

    def differs(self: Optimization, **_: Any) -> Any:
        raise VerificationError("the outputs differ")

    monkeypatch.setattr(Optimization, "run", differs)
    with pytest.raises(VerificationError):
        optimize_folder(folder)
    assert contents(folder) == before


def test_folders_that_make_no_sense_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="there is no model in"):
        optimize_folder(tmp_path / "empty")
    with pytest.raises(UsageError, match="there is no folder"):
        optimize_folder(folder / "encoder.onnx")
    with pytest.raises(UsageError, match="is a file"):
        optimize_folder(folder, folder / "config.json")
    with pytest.raises(UsageError, match="level"):
        optimize_folder(folder, level=7)
