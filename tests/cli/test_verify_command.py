"""``ortopt verify``: a table or data, and an exit code that says how two models compare."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortopt.system import child_processes, memory

HEAD = "main (float[N,4] x) => (float[N,4] y, int64[1] n)"
TEXTS = {
    "a": f"{HEAD} {{ y = Add (x, x) n = Shape <start = 1> (x) }}",
    "b": f"{HEAD} {{ c = Constant <value_float = 2.0> () y = Mul (x, c) n = Shape <start = 1> (x) }}",
    "near": f"{HEAD} {{ c = Constant <value_float = 2.01> () y = Mul (x, c) n = Shape <start = 1> (x) }}",
    "other": f"{HEAD} {{ y = Add (x, x) n = Shape <end = 1> (x) }}",
    "missing": f"{HEAD} {{ y = NoSuchOp (x) n = Shape <start = 1> (x) }}",
    "text": "main (string[N] s) => (string[N] t) { t = Identity (s) }",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}')
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    return tmp_path


def test_models_that_agree(ortopt: Any, files: Path) -> None:
    done = ortopt("verify", "a.onnx", "b.onnx")
    assert re.search(r"verified: [3-7] input sets", done.stdout), "further ones as far as there is time"
    assert done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["output", "y", "n"]


def test_models_that_differ(ortopt: Any, files: Path) -> None:
    done = ortopt("verify", "a.onnx", "near.onnx", code=3)
    assert done.stderr.startswith("ortopt: the models differ: output 'y': ")
    assert done.stderr.count("\n") == 1
    assert re.search(r"differs: [3-7] input sets", done.stdout)
    row = next(line for line in done.stdout.splitlines() if line.startswith("y "))
    assert " no " in row
    assert " instead of " in row


def test_integers_that_differ(ortopt: Any, files: Path) -> None:
    assert "1 of 1 elements differ" in ortopt("verify", "a.onnx", "other.onnx", code=3).stderr


def test_data(ortopt: Any, files: Path) -> None:
    done = ortopt("verify", "a.onnx", "near.onnx", "--json", code=3)
    data = json.loads(done.stdout)
    assert data["schema"] == 1
    assert (data["original"], data["result"], data["status"]) == ("a.onnx", "near.onnx", "differs")
    row = data["outputs"][0]
    assert row["name"] == "y"
    assert 0.001 < row["worst"] < 0.1
    assert row["agrees"] is False
    assert json.loads(ortopt("verify", "a.onnx", "other.onnx", "--json", code=3).stdout)["worst"] == "inf"


def test_tolerances_can_be_given(ortopt: Any, files: Path) -> None:
    ortopt("verify", "a.onnx", "near.onnx", "--rtol", "0.006")
    ortopt("verify", "a.onnx", "near.onnx", "--rtol", "0.004", code=3)
    ortopt("verify", "a.onnx", "near.onnx", "--atol", "1")


def test_inputs_and_sizes_can_be_given(ortopt: Any, files: Path) -> None:
    np.savez(files / "in.npz", x=np.zeros((7, 4), np.float32))
    assert "verified: 1 input set," in ortopt("verify", "a.onnx", "near.onnx", "--inputs", "in.npz").stdout
    assert re.search(r"verified: [2-6] input sets,", ortopt("verify", "a.onnx", "b.onnx", "--dim", "N=3").stdout)
    assert re.search(
        r"verified: [2-6] input sets,", ortopt("verify", "a.onnx", "b.onnx", "--input-shape", "x=3,4").stdout
    )


def test_what_does_not_run_here(ortopt: Any, files: Path) -> None:
    done = ortopt("verify", "missing.onnx", "a.onnx", code=2)
    assert done.stderr.startswith("ortopt: the models could not be compared: the original does not run here: ")
    assert "the original runs, the result does not" in ortopt("verify", "a.onnx", "missing.onnx", code=3).stderr


def test_one_from_stdin(ortopt: Any, files: Path) -> None:
    ortopt("verify", "-", "b.onnx", stdin=(files / "a.onnx").read_bytes())
    ortopt("verify", "a.onnx", "-", stdin=(files / "b.onnx").read_bytes())


def test_names_cannot_write_to_the_terminal(ortopt: Any, files: Path) -> None:
    model = onnx.load(files / "near.onnx")
    model.graph.output[0].name = model.graph.node[1].output[0] = "\x1b[2J\ny"
    (files / "esc.onnx").write_bytes(model.SerializeToString())
    for pair in (("esc.onnx", "esc.onnx"), ("esc.onnx", "a.onnx"), ("a.onnx", "esc.onnx")):
        done = ortopt("verify", *pair, code=0 if pair[0] == pair[1] else 3)
        assert "\x1b" not in done.stdout + done.stderr
        assert done.stderr.count("\n") == (0 if pair[0] == pair[1] else 1)


# -- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["optimize", "verify", "explain", "info", "groups"])
def test_the_limit_holds_while_a_command_runs(
    ortopt: Any, files: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    import resource

    seen: list[int] = []
    load = onnx.ModelProto.ParseFromString

    def spied(self: onnx.ModelProto, data: bytes) -> Any:
        seen.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
        return load(self, data)

    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setattr(onnx.ModelProto, "ParseFromString", spied)
    more = {"verify": ["a.onnx"], "explain": ["identity_elimination"], "optimize": ["--no-verify"]}.get(command, [])
    ortopt(command, "a.onnx", *more, "--max-memory", "12GB")
    assert set(seen) == {12_000_000_000}
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert memory.limit() is None


def test_a_child_gets_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.remaining() is None
    with memory.bounded(64 << 30):
        assert memory.limit() == 64 << 30
        left = memory.remaining()
        assert left is not None
        assert 32 << 30 < left < 64 << 30
    monkeypatch.setattr(memory, "machine", lambda: None)
    assert memory.default_limit() is None


def test_a_machine_has_memory() -> None:
    total, share = memory.machine(), memory.default_limit()
    assert total is not None
    assert share is not None
    assert memory.LEAST <= share < max(total, memory.LEAST + 1)


@pytest.mark.processes
def test_what_takes_too_much_memory_is_one_line(ortopt: Any, files: Path) -> None:
    """The original's own process runs out of memory, not this one."""
    text = """main (int64[1] n) => (float[k] y) { s = Expand (n, n) k = ConstantOfShape (n) y = Identity (k) }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}')
    (files / "big.onnx").write_bytes(model.SerializeToString())
    np.savez(files / "in.npz", n=np.array([1 << 29]))
    done = ortopt("verify", "big.onnx", "big.onnx", "--inputs", "in.npz", "--max-memory", "1GB", code=2)
    assert "the models could not be compared" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.processes
def test_the_limit_reaches_the_process_that_runs_models(
    ortopt: Any, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []
    asked = child_processes.Conversation.ask

    def spied(child: child_processes.Conversation, request: Any) -> None:
        requests.append((child, request))
        asked(child, request)

    monkeypatch.setattr(child_processes.Conversation, "ask", spied)
    ortopt("optimize", "a.onnx", "--max-memory", "9GB")
    assert len({child for child, _ in requests}) == 1, "one process for the original and the result"
    models = [request for _, request in requests if isinstance(request, dict)]
    assert [model["optimize"] for model in models] == [False, False, True], (
        "the result is loaded as people deploy it, too"
    )
    assert all(memory.LEAST <= model["memory"] < 9_000_000_000 for model in models)


CHAIN = "main (float[N,4] x) => (float[N,4] y) {{ a = Relu (x) b = {op} (a) c = Add (b, b) y = Neg (c) }}"


@pytest.fixture
def chains(tmp_path: Path) -> Path:
    for name, op in (("tanh", "Tanh"), ("sin", "Sin")):
        model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {CHAIN.format(op=op)}')
        for number, node in enumerate(model.graph.node):
            node.name = f"/net/block.{number // 2}/{node.op_type}"
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    return tmp_path


def test_the_first_layer_that_differs(ortopt: Any, chains: Path) -> None:
    done = ortopt("verify", "tanh.onnx", "sin.onnx", "--layers", code=3)
    lines = done.stdout.splitlines()
    assert "layers: 4 of the 4 values that B computes are compared with A's (4 by name, 0 by origin)" in done.stdout
    (first,) = (line for line in lines if line.startswith("the first that differs: "))
    assert first.startswith("the first that differs: 'b' (Tanh, in B Sin; layer net/block.0): ")
    assert "  it is computed from 'a': no difference there" in lines
    layers = [line.split() for line in lines if line.startswith("net/block.")]
    assert [(cells[0], cells[2:4]) for cells in layers] == [("net/block.0", ["2", "1"]), ("net/block.1", ["2", "2"])]
    assert len(lines) <= 24


def test_all_layers(ortopt: Any, chains: Path) -> None:
    lines = ortopt("verify", "tanh.onnx", "sin.onnx", "--layers", "-v", code=3).stdout.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("value "))
    assert lines[start].split()[:5] == ["value", "op", "module", "type", "differs"]
    cells = [re.split(r"\s{3,}", line.strip()) for line in lines[start + 1 : start + 5]]
    assert [row[:2] for row in cells] == [["a", "Relu"], ["b", "Tanh → Sin"], ["c", "Add"], ["y", "Neg"]]
    assert [row[4] for row in cells[1:]] == ["first", "yes", "yes"]
    assert cells[0][2:4] == ["net/block.0", "float[N, 4]"]


def test_layers_as_data(ortopt: Any, chains: Path) -> None:
    data = json.loads(ortopt("verify", "tanh.onnx", "sin.onnx", "--layers", "--json", code=3).stdout)["layers"]
    assert [row["value"] for row in data["rows"]] == ["a", "b", "c", "y"]
    assert data["first"] == data["rows"][1]
    assert (data["first"]["begins"], data["first"]["joined_by"], data["first"]["error"]["agrees"]) == (
        True, "name", False,
    )  # fmt: skip
    assert data["agreeing"] == ["a"]
    assert [row["differing"] for row in data["by_layer"]] == [1, 2]
    assert json.loads(ortopt("verify", "tanh.onnx", "tanh.onnx", "--json").stdout)["layers"] is None


def test_layers_do_not_change_the_exit_code(ortopt: Any, chains: Path) -> None:
    done = ortopt("verify", "tanh.onnx", "tanh.onnx", "--layers")
    assert "no value differs" in done.stdout.splitlines()
    other = onnx.load(chains / "tanh.onnx")
    other.graph.node[1].output[0] = "t"
    other.graph.node.insert(2, onnx.helper.make_node("Add", ["t", "t"], ["b"]))
    other.graph.node[3].op_type = "Identity"
    other.graph.node[3].input[:] = ["b"]
    onnx.save(other, chains / "moved.onnx")
    done = ortopt("verify", "tanh.onnx", "moved.onnx", "--layers")
    assert "1 value differs, and what is computed from it agrees: 'b'" in done.stdout.splitlines()
