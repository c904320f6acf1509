"""``ortopt optimize`` with two arguments, several, and folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortopt.serialization.save import save
from ortopt.testing import parse

QUICK = "--no-verify"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models at two depths, one of them broken on request, and what a library puts beside them."""
    root = tmp_path / "hub"
    (root / "sub").mkdir(parents=True)
    model = parse("main (float[N] x) => (float[N] y) { i = Identity (x) y = Relu (i) }")
    save(model, root / "model.onnx")
    save(model, root / "sub" / "decoder.onnx")
    for name in ("config.json", "tokenizer.json", "vocab.txt", "sub/more.json", "model.safetensors", ".secret.json"):
        (root / name).write_text("{}")
    return root


def nodes(path: Path | str) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_two_files_are_in_and_out(ortopt: Any, folder: Path) -> None:
    ortopt("optimize", "hub/model.onnx", "out.onnx", QUICK)
    assert nodes("out.onnx") == ["Relu"]
    ortopt("optimize", "hub/sub/decoder.onnx", "out.onnx", QUICK)  # ortopt has written it
    before = (folder / "model.onnx").read_bytes()
    said = ortopt("optimize", "hub/sub/decoder.onnx", "hub/model.onnx", QUICK, code=1).stderr
    assert "ortopt has not written it: --overwrite replaces it" in said
    assert (folder / "model.onnx").read_bytes() == before
    ortopt("optimize", "hub/sub/decoder.onnx", "hub/model.onnx", QUICK, "--overwrite")
    assert nodes(folder / "model.onnx") == ["Relu"]


def test_what_is_no_model_is_not_replaced_by_position(ortopt: Any, folder: Path) -> None:
    Path("notes.txt").write_text("mine")
    ortopt("optimize", "hub/model.onnx", "notes.txt", QUICK, code=1)
    assert Path("notes.txt").read_text() == "mine"


def test_a_folder_keeps_its_tree_and_its_companions(ortopt: Any, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("mine")
    (folder / "link.json").symlink_to(secret)
    (folder / "inside.json").symlink_to(folder / "config.json")
    done = ortopt("optimize", "hub", "-o", "out", QUICK, "--json", "r.json")
    assert nodes("out/model.onnx") == nodes("out/sub/decoder.onnx") == ["Relu"]
    found = {str(path.relative_to("out")) for path in Path("out").rglob("*") if path.is_file()}
    assert found == {
        "model.onnx", "sub/decoder.onnx", "config.json", "tokenizer.json", "vocab.txt", "sub/more.json", "inside.json",
    }  # fmt: skip
    assert "copied beside the results from hub: config.json, inside.json, tokenizer.json, vocab.txt" in done.stdout
    assert "link.json" in done.stderr
    assert "hub/model.onnx: 2 → 1 nodes" in done.stdout
    assert [row["input"] for row in json.loads(Path("r.json").read_text())["models"]] == [
        "hub/model.onnx",
        "hub/sub/decoder.onnx",
    ]


def test_external_data_are_the_results_own(ortopt: Any, folder: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> main (float[N,64] x) => (float[N,64] y) {
        i = Identity (x) y = MatMul (i, w) }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    onnx.save(model, folder / "big.onnx", save_as_external_data=True, location="weights.json", size_threshold=0)
    ortopt("optimize", "hub", "-o", "out", QUICK)
    assert not Path("out/weights.json").exists()
    (data,) = Path("out").glob("big.*.data")
    assert data.stat().st_size
    onnx.checker.check_model("out/big.onnx")


def test_one_that_is_broken_does_not_cost_the_others(ortopt: Any, folder: Path) -> None:
    (folder / "a.onnx").write_bytes(b"nonsense")
    done = ortopt("optimize", "hub", "hub/model.onnx", "-o", "out", QUICK, "--json", "r.json", code=2)
    assert nodes("out/sub/decoder.onnx") == ["Relu"]
    rows = json.loads(Path("r.json").read_text())["models"]
    assert [bool(row["error"]) for row in rows] == [True, False, False]
    assert "not an ONNX model" in done.stderr


def test_results_of_an_earlier_run_are_no_models(ortopt: Any, folder: Path) -> None:
    for _ in range(2):
        ortopt("optimize", "hub", "-o", "hub/out", QUICK)
    found = {str(path.relative_to("hub/out")) for path in Path("hub/out").rglob("*.onnx")}
    assert found == {"model.onnx", "sub/decoder.onnx"}


def test_models_of_other_folders_are_verified(ortopt: Any, folder: Path) -> None:
    done = ortopt("optimize", "hub/model.onnx", "hub/sub/decoder.onnx", "-o", "out")
    lines = done.stdout.replace("\n", " ")
    assert lines.count("(CPU; no difference), has standard ops only") == 2
    assert done.stdout.count(", written: out/") == 2
