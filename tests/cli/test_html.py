"""``--html``: pages beside the result, of one model and of several; and ``ortopt diff``."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ortopt.cli.group import commands
from ortopt.serialization.load import load
from ortopt.serialization.save import save
from ortopt.testing import parse

MODEL = """
main (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> {
    i = Identity (x) m = MatMul (i, w) y = Add (m, b) }"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, which is the current one."""
    monkeypatch.chdir(tmp_path)
    Path("zoo").mkdir()
    for name in ("m.onnx", "zoo/a.onnx", "zoo/b.onnx"):
        save(parse(MODEL), name)
    return tmp_path


def ortopt(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments)


def data_of(path: str) -> dict[str, Any]:
    found = re.search(r'id="data">([^<]*)</script>', Path(path).read_text(encoding="utf-8"))
    assert found
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def test_optimize_writes_a_page_beside_the_result() -> None:
    done = ortopt("optimize", "m.onnx", "-o", "o.onnx", "--html", "r.html", "--json", "r.json")
    assert done.exit_code == 0, done.output
    data = data_of("r.html")
    assert data["title"] == "m.onnx"
    assert data["report"] == json.loads(Path("r.json").read_text())
    assert [len(data[side]["nodes"]) for side in ("before", "after")] == [3, 1]
    assert sorted(path.name for path in Path().iterdir()) == ["m.onnx", "o.onnx", "r.html", "r.json", "zoo"]


def test_the_page_changes_nothing_in_the_result() -> None:
    for name, more in (("plain.onnx", []), ("with.onnx", ["--html", "r.html"])):
        assert ortopt("optimize", "m.onnx", "-o", name, "-q", "--no-verify", *more).exit_code == 0
    assert Path("plain.onnx").read_bytes() == Path("with.onnx").read_bytes()


def test_a_page_goes_with_a_result_on_stdout_and_with_quiet() -> None:
    done = ortopt("optimize", "m.onnx", "-o", "-", "--html", "r.html", "-q", "--no-verify")
    assert done.exit_code == 0
    assert load(done.stdout_bytes).graph is not None
    assert data_of("r.html")["report"]["output"]["path"] is None


def test_level_0_has_a_page_too() -> None:
    assert ortopt("optimize", "m.onnx", "-O0", "-o", "o.onnx", "--no-verify", "--html", "r.html").exit_code == 0
    assert len(data_of("r.html")["before"]["nodes"]) == 3


def test_other_opsets_have_a_page_too() -> None:
    save(parse(MODEL.replace("\nmain", '<ir_version: 8, opset_import: ["" : 13]> main')), "old.onnx")
    assert (
        ortopt("optimize", "old.onnx", "--opset", "18", "--no-verify", "-o", "o.onnx", "--html", "r.html").exit_code
        == 0
    )
    assert len(data_of("r.html")["before"]["nodes"]) == 3


def test_several_models_have_a_folder_of_pages_with_an_index() -> None:
    done = ortopt("optimize", "zoo", "m.onnx", "-o", "out", "--html", "pages")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in Path("pages").iterdir()) == [
        "a.onnx.html",
        "b.onnx.html",
        "index.html",
        "m.onnx.html",
    ]
    index = data_of("pages/index.html")
    assert [row["page"] for row in index["rows"]] == ["./a.onnx.html", "./b.onnx.html", "./m.onnx.html"]
    assert index["counts"] == {"verified": 3}
    assert [row["nodes"] for row in index["rows"]] == [1, 1, 1]


def test_an_address_in_an_index_is_a_path_and_never_a_script() -> None:
    save(parse(MODEL), "zoo/javascript:alert(1).onnx")
    assert ortopt("optimize", "zoo", "-o", "out", "--no-verify", "--html", "pages").exit_code == 0
    assert "./javascript%3Aalert%281%29.onnx.html" in {row["page"] for row in data_of("pages/index.html")["rows"]}


def test_a_broken_model_is_in_the_index_without_a_page() -> None:
    Path("zoo/a.onnx").write_bytes(b"nothing")
    assert ortopt("optimize", "zoo", "-o", "out", "--no-verify", "--html", "pages").exit_code == 2
    rows = {Path(row["name"]).name: row for row in data_of("pages/index.html")["rows"]}
    assert rows["a.onnx"]["page"] == ""
    assert rows["a.onnx"]["status"] == "broken"
    assert rows["a.onnx"]["says"]


def test_check_writes_an_index() -> None:
    done = ortopt("check", "zoo", "--html", "check.html", "-q")
    assert done.exit_code == 0, done.output
    data = data_of("check.html")
    assert data["kind"] == "check"
    assert [row["status"] for row in data["rows"]] == ["done", "done"]
    assert [row["nodes"] for row in data["rows"]] == [1, 1]


def test_diff_tells_how_models_differ() -> None:
    assert ortopt("optimize", "m.onnx", "-o", "o.onnx", "-q", "--no-verify", "--provenance").exit_code == 0
    done = ortopt("diff", "m.onnx", "o.onnx", "--html", "d.html")
    assert done.exit_code == 0, done.output
    assert "3 nodes in A, 1 in B" in done.stdout
    data = data_of("d.html")
    (told,) = data["rewrites"]
    assert told[1] == "matmul_add_fusion"
    assert data["diff"] == json.loads(ortopt("diff", "m.onnx", "o.onnx", "--json").stdout)


def test_diff_finds_nodes_again_by_their_names() -> None:
    save(parse(MODEL.replace("Identity", "Relu")), "other.onnx")
    assert ortopt("diff", "m.onnx", "other.onnx", "--html", "d.html").exit_code == 0
    data = data_of("d.html")
    assert [row[0] for row in data["before"]["nodes"]] == [0, 1, 2]
    assert [row[0] for row in data["after"]["nodes"]] == [3, 1, 2]
    assert data["changed"] == []
