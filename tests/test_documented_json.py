"""docs/json.md names the fields that --json has, all of them and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ortopt.cli.group import COMMANDS, commands
from ortopt.serialization.save import save
from ortopt.testing import parse

pytestmark = pytest.mark.usefixtures("models_run_here")

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
MODEL = """
main (float[N,8] x) => (float[N,4] y) <float[8,4] w, float[4] b> {
    i = Identity (x) m = MatMul (i, w) s = Shape (m) z = ConstantOfShape (s) t = Add (m, z) y = Add (t, b) }"""
ATTENTION = """
main (float[2,4,8] q, float[2,8,4] k, float[2,4,8] v) => (float[2,4,8] y) {
    s = MatMul (q, k) p = Softmax (s) y = MatMul (p, v) }"""
DECODER = "main (float[N] x) => (float[N] y) { y = Relu (x) }"
ARGUMENTS = {
    "optimize": ["model.onnx", "-q", "--json", "-"],
    "check": ["model.onnx", "-q", "--json", "-"],
    "verify": ["model.onnx", "model.onnx", "--json"],
    "diff": ["model.onnx", "model.onnx", "--json"],
    "bisect": ["model.onnx", "--json"],
    "run": ["model.onnx", "--json"],
    "bench": ["model.onnx", "--levels", "0", "--rounds", "1", "--repeat", "1", "--no-verify", "--json"],
    "explain": ["model.onnx", "identity_elimination", "--json"],
    "explain attention": ["model.onnx", "--json"],
    "explain layout": ["model.onnx", "--json"],
    "groups": ["model.onnx", "--json"],
    "extract": ["model.onnx", "--outputs", "m", "-o", "part.onnx", "--json"],
    "merge-decoders": ["decoder.onnx", "with_past.onnx", "-o", "merged.onnx", "--json"],
    "info": ["model.onnx", "--json"],
    "passes": ["--json"],
    "costs show": ["--json"],
    "costs compare": ["shipped", "mine.json", "--json"],
    "zoo list": ["--json"],
}


def sections() -> dict[str, dict[str, set[str]]]:
    """By command: the fields of its table, each with the names in its row."""
    found: dict[str, dict[str, set[str]]] = {}
    for part in TEXT.split("\n## ortopt ")[1:]:
        rows = found[part.partition("\n")[0]] = {}
        for fields, said in re.findall(r"^\| (`.*?) \| (.*) \|$", part, re.MULTILINE):
            names = re.findall(r"`([^`]+)`", fields)
            rows.update({name: set(re.findall(r"`([^`]+)`", said)) for name in names})
    return found


def write_table(path: Path) -> None:
    """A table that differs from the one that ships, and knows one more form and not all others."""
    told = {"provider": "CPUExecutionProvider", "verdict": "neutral", "instead_of": "others", "source": "s"}
    rows = [{"op": op, **told} for op in ("Einsum", "Relu")]
    path.write_text(json.dumps({"name": "mine", "sources": {"s": "made up"}, "costs": rows}))


def nested(value: Any) -> set[str]:
    """The fields of the elements of a list."""
    rows = value if isinstance(value, list) else []
    return {key for row in rows if isinstance(row, dict) for key in row}


def test_every_command_has_its_table() -> None:
    assert {name.split()[0] for name in sections()} == set(COMMANDS)
    assert set(ARGUMENTS) == set(sections())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_fields_are_those(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = MODEL.replace(" <float[8,4] w, float[4] b>", "").replace("x)", "x, float[8,4] w, float[4] b)", 1)
    command, *subject = name.split()
    write_table(tmp_path / "mine.json")
    save(parse(ATTENTION if "attention" in subject else text), tmp_path / "model.onnx")
    save(parse(DECODER), tmp_path / "decoder.onnx")
    save(parse(DECODER.replace("x)", "x, float[N] p)", 1)), tmp_path / "with_past.onnx")
    words = (
        [*ARGUMENTS[name][:1], *subject, *ARGUMENTS[name][1:]] if command == "explain" else [*subject, *ARGUMENTS[name]]
    )
    done = CliRunner().invoke(commands, [command, *words])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    told = sections()[name]
    assert set(told) == (nested(data) if isinstance(data, list) else set(data))
    if isinstance(data, dict):
        for field, value in data.items():
            assert nested(value) <= told[field], field
