"""One line on stderr, the exit code that says what happened, and nothing written that should not be."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortopt import api
from ortopt.analysis import providers
from ortopt.cli import optimization
from ortopt.errors import OptimizationCancelled
from ortopt.serialization.save import save
from ortopt.testing import parse


def test_no_arguments_show_the_help_as_an_error(ortopt: Any) -> None:
    assert "Commands:" in ortopt(code=1).stderr


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def test_a_broken_model_leaves_the_old_result(ortopt: Any, model: Path) -> None:
    model.with_name("m.opt.onnx").write_bytes(b"old")
    truncated(model)
    ortopt("optimize", model, code=2)
    assert model.with_name("m.opt.onnx").read_bytes() == b"old"


def test_names_from_files_cannot_write_to_the_terminal(ortopt: Any, tmp_path: Path) -> None:
    done = ortopt("optimize", "no\x1b[31m\nsuch.onnx", code=2)
    assert "\x1b" not in done.stderr
    assert "\\x1b" in done.stderr
    assert done.stderr.count("\n") == 1


def _npz_broken(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 and no more")


def _npz_single(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def _npz_pickle(path: Path) -> None:
    np.savez(path, x=np.array([{"a": 1}], dtype=object))


def _npz_text(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", "hello")


def _npz_missing(path: Path) -> None:
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("make", [_npz_broken, _npz_single, _npz_pickle, _npz_text, _npz_missing])
def test_broken_inputs_to_verify_with_are_2(ortopt: Any, model: Path, make: Callable[[Path], None]) -> None:
    make(model.with_name("in.npz"))
    done = ortopt("optimize", model, "--inputs", "in.npz", code=2)
    assert done.stderr.count("\n") == 1
    assert not model.with_name("m.opt.onnx").exists()


def test_a_wrong_result_is_3_and_never_written(ortopt: Any, report: Any, model: Path) -> None:
    data = report("--only", "wrong_numbers", "--no-repair", verify=True, code=3)
    assert data["output"] is None
    assert data["verified"] is False
    assert data["verification"]["status"] == "differs"
    assert "differs" in data["error"]
    assert not model.with_name("m.opt.onnx").exists()
    done = ortopt("optimize", model, "--only", "wrong_numbers", "--no-repair", code=3)
    assert done.stderr.count("\n") == 1
    assert "'r'" in done.stderr


def test_what_cannot_be_verified_under_strict_is_3(ortopt: Any, tmp_path: Path) -> None:
    save(parse("main (float[N] x) => (float[N] y) { z = Sub (x, x) y = Div (z, z) }"), tmp_path / "nan.onnx")
    done = ortopt("optimize", "nan.onnx", "--strict", "--json", "r.json", code=3)
    assert "the result could not be verified" in done.stderr
    assert not (tmp_path / "nan.opt.onnx").exists()
    assert "--strict" in json.loads((tmp_path / "r.json").read_text())["error"]
    assert "warning" in ortopt("optimize", "nan.onnx").stderr
    ortopt("optimize", "nan.onnx", "--strict", "--no-verify")


def test_a_provider_that_is_missing_is_told_and_the_result_verified_on_the_cpu(ortopt: Any, model: Path) -> None:
    for more in ((), ("--strict",)):
        done = ortopt("optimize", model, "--provider", "cann", "--json", "r.json", *more)
        assert "CANNExecutionProvider does not work here" in done.stderr
        assert "results are verified on CPUExecutionProvider" in done.stderr
        data = json.loads(Path("r.json").read_text())
        assert (data["verified"], data["verified_on"], data["not_shown"]) == (True, ["CPUExecutionProvider"], None)
        assert "(CPU, not CANN)" in done.stdout
    assert "does not work here" not in ortopt("optimize", model, "--provider", "cann", "--no-verify").stderr


WITHOUT_CUDA = pytest.mark.skipif(providers.usable(providers.CUDA)[0], reason="CUDA works here")
GPU_ONLY = """<ir_version: 9, opset_import: ["": 17]> main (float[2,5,320] x, float[320] b, float[2,5,320] r)
    => (float[2,5,320] y) { i = Identity (x) n = Identity (r) s = Add (i, b) y = Add (s, n) }"""


@WITHOUT_CUDA
def test_ops_that_run_on_the_missing_provider_alone_are_counted(ortopt: Any, tmp_path: Path) -> None:
    (tmp_path / "gpu.onnx").write_bytes(onnx.parser.parse_model(GPU_ONLY).SerializeToString())
    how = ("--provider", "cuda", "--fusions", "all", "-O2")
    done = ortopt("optimize", "gpu.onnx", *how, "--json", "r.json")
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["not_shown"] == {"nodes": 1, "ops": {"com.microsoft::BiasAdd": 1}, "passes": ["bias_add_fusion"]}
    assert (data["verified"], data["verification"]["status"]) == (False, "not shown")
    said = "1 node has no kernel here (1 com.microsoft::BiasAdd); without bias_add_fusion it is verified"
    assert said in done.stderr
    assert [node.op_type for node in onnx.load("gpu.opt.onnx").graph.node] == ["BiasAdd"]
    Path("gpu.opt.onnx").unlink()
    assert said in ortopt("optimize", "gpu.onnx", *how, "--strict", code=3).stderr
    assert not Path("gpu.opt.onnx").exists()


@WITHOUT_CUDA
def test_what_is_wrong_beside_them_is_repaired_in_the_result(ortopt: Any, tmp_path: Path) -> None:
    text = GPU_ONLY.replace("(float[2,5,320] y)", "(float[2,5,320] y, float[2,5,320] z)").replace(
        "y = Add (s, n)", "y = Add (s, n) z = Relu (x)"
    )
    (tmp_path / "gpu.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    how = ("--provider", "cuda", "--fusions", "all", "-O2", "--enable", "wrong_numbers")
    ortopt("optimize", "gpu.onnx", *how, "--json", "r.json")
    data = json.loads((tmp_path / "r.json").read_text())
    assert [repair["pass"] for repair in data["repairs"]] == ["wrong_numbers"]
    assert data["verification"]["status"] == "not shown"
    assert sorted(node.op_type for node in onnx.load("gpu.opt.onnx").graph.node) == ["BiasAdd", "Relu"]


def test_a_pass_that_fails_under_strict_is_4(ortopt: Any, model: Path) -> None:
    done = ortopt("optimize", model, "--enable", "failure", "--strict", code=4)
    assert "failure failed at level 1, step 1" in done.stderr
    assert "--disable failure" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not model.with_name("m.opt.onnx").exists()


def test_the_trace_of_a_failed_run_is_written(ortopt: Any, model: Path) -> None:
    ortopt("optimize", model, "--enable", "failure", "--strict", "--trace", "t.json", code=4)
    assert json.loads(model.with_name("t.json").read_text())["traceEvents"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OptimizationCancelled])
@pytest.mark.parametrize("phase", ["transform", "verify"])
def test_cancelled_is_130(
    ortopt: Any, model: Path, monkeypatch: pytest.MonkeyPatch, phase: str, error: type[BaseException]
) -> None:
    def cancelled(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api.Optimization, phase, cancelled)
    done = ortopt("optimize", model, "--trace", "t.json", "--json", "r.json", code=130)
    assert done.stderr == "ortopt: cancelled\n"
    assert [path.name for path in model.parent.iterdir()] == ["m.onnx"]


def test_a_mistake_of_ours_is_one_line_too(ortopt: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("two\nlines")

    monkeypatch.setattr(api.Optimization, "transform", broken)
    done = ortopt("optimize", model, code=70)
    assert done.stderr.startswith("ortopt: internal error: AssertionError: two lines (ORTOPT_TRACEBACK=1")


def test_a_file_that_ends_early_is_no_cancellation(ortopt: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr(api.Optimization, "transform", broken)
    done = ortopt("optimize", model, code=70)
    assert "EOFError: marshal data too short" in done.stderr
    assert done.stderr.count("\n") == 1


def test_memory_that_runs_out_is_2(ortopt: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(api.Optimization, "transform", broken)
    assert ortopt("optimize", model, code=2).stderr == "ortopt: out of memory (see --max-memory)\n"


HOARDING = """
import onnx_ir
from ortopt import GraphTransformer
from ortopt.cli import main
from ortopt.registry import installed

class Hoards(GraphTransformer):
    \"\"\"Nothing becomes more than there may be.\"\"\"

    def apply(self, graph: onnx_ir.Graph, context: object) -> bool:
        self.hoard = []
        while True:
            self.hoard.append([0] * 100_000)

installed().add(Hoards, "test")
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="where memory is bounded by RLIMIT_DATA")
@pytest.mark.parametrize("more", [["--no-verify"], []], ids=["alone", "verified"])
def test_a_run_beyond_its_memory_ends(model: Path, more: list[str]) -> None:
    """A pass that runs out of memory is not left out: the one after it would find no more."""
    command = [
        sys.executable,
        "-c",
        HOARDING,
        "optimize",
        str(model),
        "-o",
        "out.onnx",
        "--max-memory",
        "512MiB",
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (2, "ortopt: out of memory (see --max-memory)\n")
    assert not Path("out.onnx").exists()


UNRAISED = """
import sys
from ortopt import cli
from ortopt.cli import group

class Fails:
    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error

def main():
    Fails(MemoryError("nothing left"))
    Fails(ValueError("something else"))
    raise SystemExit(0)

group.commands.main = main
cli.main()
"""


def test_what_cannot_be_raised_is_reported_but_for_memory_that_is_out() -> None:
    done = subprocess.run([sys.executable, "-c", UNRAISED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "ValueError: something else" in done.stderr
    assert "nothing left" not in done.stderr


def test_two_onnxruntimes_over_each_other_are_said_once(
    ortopt: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "distributions", lambda: {"onnxruntime": "1", "onnxruntime-gpu": "1"})
    providers.check_installation.cache_clear()
    monkeypatch.setattr(optimization, "check_installation", providers.check_installation)
    try:
        done = ortopt("optimize", model)
    finally:
        providers.check_installation.cache_clear()
    assert done.stderr.count("installed over each other") == 1
    assert done.stderr.count("\n") == 1


def test_a_command_that_resembles_none_has_no_hint(ortopt: Any) -> None:
    assert "did you mean" not in ortopt("xyzzy", code=1).stderr
