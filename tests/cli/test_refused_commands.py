"""Commands that make no sense, and files that are not there: one line on stderr, the exit code, nothing written.

refused_commands.txt holds them: the exit code, the command line, what is said.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from ortopt.cli.group import commands
from tests.cli.conftest import MODEL
from tests.texts import Case, rows

CASES = Path(__file__).parent / "refused_commands.txt"
FLOAT_MODELS = ("m", "zoo/a", "zoo/b", "hub/model", "hub/sub/decoder", "copy/model")
TEXTS = {
    "plain": "main (float[N,4] x) => (float[N,4] file) { file = Neg (x) }",
    "square": "main (float[N] x) => (float[M] y) { s = Constant <value_ints = [57]> () y = Reshape (x, s) }",
    "missing": "main (float[N] x) => (float[N] y) { y = NoSuchOp (x) }",
    "list": "main (seq(float[M]) s) => (int64 n) { n = SequenceLength (s) }",
    "positions": """main (float[N,4,2] x) => (float[N,4,2] y) {
        p = Constant <value = float[1,4,2] {1,2,3,4,5,6,7,8}> () y = Add (x, p) }""",
    "sized": "main (int64[batch,seq] ids) => (int64[batch,seq] y) { y = Neg (ids) }",
    **dict.fromkeys(
        FLOAT_MODELS,
        MODEL.replace("[4] b>", "[4] b = {1, 2, 3, 4}>").replace("[8,4] w", f"[8,4] w = {{{', '.join(['0.5'] * 32)}}}"),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name: models, inputs, folders, and what is none of these."""
    root = tmp_path_factory.mktemp("commands")
    for name in ("zoo", "hub/sub", "copy", "nothing"):
        (root / name).mkdir(parents=True)
    for name, text in TEXTS.items():
        model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}')
        (root / f"{name}.onnx").write_bytes(model.SerializeToString())
    for name, content in {"file": b"", "broken.onnx": b"\x00 no model", "broken.npz": b"no archive"}.items():
        (root / name).write_bytes(content)
    (root / "broken.json").write_text("{}")
    np.savez(root / "z.npz", z=np.zeros(3))
    return root


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize(("_", "row"), rows(CASES))
def test_refused(_: Case, row: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, command, reason = row
    monkeypatch.chdir(folder)
    before = contents(folder)
    done = CliRunner().invoke(commands, shlex.split(command))
    assert done.exit_code == int(code), done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("ortopt: ")
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr
    assert contents(folder) == before
