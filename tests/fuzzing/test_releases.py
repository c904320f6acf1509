"""Results on the runtimes that they are for: what is compared, and what is told."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuzzing import releases, turns
from fuzzing.mutants.examples import Example
from fuzzing.releases import Case, Runner, difference, environments, examine, of_folder, of_passes, options_for
from ortopt.testing import parse
from ortopt.verification import runtimes
from ortopt.verification.process import WorkerError
from ortopt.verification.start import Runtime

FLOATS = np.array([1.0, -2.0, np.inf], np.float32)


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (FLOATS, ""),
        (FLOATS * np.float32(1.0001), ""),
        (FLOATS * np.float32(1.1), "an error of 0.1 "),
        (np.array([1.0, np.nan, np.inf], np.float32), "other numbers are finite"),
        (FLOATS[None], "float32[1, 3] instead of float32[3]"),
        (FLOATS.astype(np.float64), "float64[3] instead of float32[3]"),
    ],
)
def test_floats_may_differ_by_rounding(got: np.ndarray[object, np.dtype[np.float32]], told: str) -> None:
    assert difference([got], [FLOATS]).startswith(told)
    assert bool(difference([got], [FLOATS])) == bool(told)


def test_integers_may_not_differ() -> None:
    assert difference([np.array([1, 2])], [np.array([1, 3])]) == "other integers"


def test_examples_are_right_on_a_runtime(tmp_path: Path) -> None:
    runtime = runtimes.find(sys.executable)
    folders = tmp_path / "there", tmp_path / "here"
    for folder in folders:
        folder.mkdir()
    with Runner(folders[0], runtime) as runner, Runner(folders[1]) as here:
        found = list(examine(runtime, of_passes(["relu_fusion"]), runner, here))
    assert set(found) <= {None}


def test_models_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(
        ir.to_proto(parse("agraph (float[N,2] x) => (float[N,2] y) { y = Relu(x) }")).SerializeToString()
    )
    (tmp_path / "notes.txt").touch()
    assert [name for name, _ in of_folder(tmp_path)] == ["net"]


def test_a_result_that_is_wrong_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = runtimes.find(sys.executable)
    plain = Runner.run

    def run(self: Runner, model: bytes, inputs: dict[str, object]) -> list[object]:
        if b"FusedGemm" in model and self._runtime is not None:
            raise WorkerError("it has no FusedGemm")
        return plain(self, model, inputs)

    monkeypatch.setattr(Runner, "run", run)
    folders = tmp_path / "there", tmp_path / "here"
    for folder in folders:
        folder.mkdir()
    with Runner(folders[0], runtime) as runner, Runner(folders[1]) as here:
        found = [one for one in examine(runtime, of_passes(["gemm_activation_fusion"]), runner, here) if one]
    assert found
    assert str(found[0]).startswith(f"{runtime.name}: gemm_activation_fusion ")
    assert str(found[0]).endswith(": it has no FusedGemm")


def test_a_release_that_cannot_be_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases.versions, "runtime_environment", lambda *_: (None, "no wheel"))
    assert list(environments(["1.17"], [])) == ["1.17: skipped (no wheel)"]
    monkeypatch.setattr(sys, "argv", ["releases", "--releases", "1.17"])
    assert releases.main() == 1


def test_a_result_is_for_its_runtime() -> None:
    given = {"min_onnxruntime": "1.17", "level": 2}
    assert options_for(Runtime("OpenVINO 2026.4.1", None), given) == {"level": 2, "target": "openvino"}
    assert options_for(Runtime("ONNX Runtime Web 1.30.0", None), {}) == {"target": "web"}
    assert options_for(Runtime("MNN 3.6.1", None), {}) == {"target": "onnx"}
    assert options_for(Runtime("ONNX Runtime 1.20.1", None), given) == {"level": 2, "min_onnxruntime": "1.20"}
    assert options_for(Runtime("ONNX Runtime 1.20.1", None), given, "onnx") == {"level": 2, "target": "onnx"}
    npu = Runtime("ONNX Runtime 1.32.0 with QNNExecutionProvider", None, providers=("QNNExecutionProvider",))
    assert options_for(npu, given) == {"level": 2, "target": "qnn"}
    assert options_for(npu, given, "ort") == {"level": 2, "target": "ort", "min_onnxruntime": "1.32"}


def test_results_that_are_right_are_measured_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_WARM_SECONDS", 0.0)  # no figure is asked for
    runtime = runtimes.find(sys.executable)
    ratios: dict[str, float] = {}

    def measure(name: str, case: Case) -> None:
        ratios[name] = turns.ratio(runtime, case.original, case.result, case.inputs, 0.0)

    folders = tmp_path / "there", tmp_path / "here"
    for folder in folders:
        folder.mkdir()
    with Runner(folders[0], runtime) as runner, Runner(folders[1]) as here:
        found = list(examine(runtime, list(of_passes(["relu_fusion"]))[:2], runner, here, measure))
    assert len(ratios) == found.count(None) > 0
    assert all(ratio > 0 for ratio in ratios.values())


def test_what_is_random_is_not_compared(tmp_path: Path) -> None:
    runtime = runtimes.find(sys.executable)
    model = ir.to_proto(parse("main (float[2] x) => (float[2] y) { a = Identity (x) y = Bernoulli (a) }"))
    with Runner(tmp_path) as here:
        assert list(examine(runtime, [("random", Example("", model, {}, {}))], here, here)) == []


def test_what_was_measured_is_told_with_those_that_are_slower() -> None:
    told = turns.told("R 1", {"a": 0.5, "b": 1.25, "c": 1.6, "d": 1.02})
    assert told.splitlines() == [
        "R 1: 1.005 of the originals' time, geometric mean of 4; 2 slower",
        "R 1: c: 1.60 of the original's time",
        "R 1: b: 1.25 of the original's time",
    ]
