"""Models in node: what the process gets and gives is what was given; a package of its own stands for the runtime's."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from ortopt import UsageError
from ortopt.testing import parse
from ortopt.verification import runtimes
from ortopt.verification.input_sets import store_inputs
from ortopt.verification.other_runtimes import NodeSession, name_of
from ortopt.verification.process import Calls, Worker, WorkerError
from ortopt.verification.verify import verify
from ortopt.verification.worker import restore

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")

ECHO = """
class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }) } }
class InferenceSession {
  static async create(model, options) {
    if (model.length < 4) throw new Error('this is no model')
    if (String(model) === 'refused') throw new Error('ERROR_CODE: 7, ERROR_MESSAGE: it is refused')
    if (String(model) === 'too large') throw new Error('ERROR_CODE: 6, ERROR_MESSAGE: std::bad_alloc')
    return Object.assign(new InferenceSession(), { options, runs: 0, counts: String(model) === 'counts' })
  }
  get outputNames() { return ['y'] }
  get outputMetadata() { return [{ name: 'y', isTensor: true, type: 'float32' }] }
  async run({ x }) {
    console.log('what the runtime prints is skipped')
    if (x.dims.length === 0) process.exit(3)
    return { y: this.counts ? new Tensor('int32', Int32Array.of(++this.runs), [1]) : x }
  }
  async release() {
    if (this.gone) throw new Error('it was released before')
    this.gone = true
  }
}
module.exports = { Tensor, InferenceSession, env: { wasm: {} } }
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that gives back what it is given."""
    folder = tmp_path / "node_modules" / "onnxruntime-web"
    folder.mkdir(parents=True)
    (folder / "index.js").write_text(ECHO, encoding="utf-8")
    stated = {
        "name": "onnxruntime-web",
        "version": "9.8.7",
        "exports": {".": "./index.js", "./package.json": "./package.json"},
    }
    (folder / "package.json").write_text(json.dumps(stated), encoding="utf-8")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"a model, for those who do not look")
    return str(path)


@needs_node
@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, -2.0]], np.float32),
        np.array([0.1, 7], np.float64),
        np.array([1.5, np.inf], np.float16),
        np.array([2**62 + 1, -1]),
        np.array([2**63], np.uint64),
        np.array([True, False]),
        np.zeros((0, 3), np.int8),
        np.array([["a", "ü"]], object),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_come_back_as_they_were(package: Path, model: str, array: np.ndarray, tmp_path: Path) -> None:
    session = NodeSession(str(package), model, optimize=False)
    try:
        (got,) = session.run(["y"], {"x": array}, tmp_path)
        assert [(output.name, output.type) for output in session.get_outputs()] == [("y", "tensor(float)")]
    finally:
        session.close()
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert np.array_equal(got, array)


@needs_node
def test_what_the_runtime_refuses_is_an_error_with_its_text(package: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no")
    with pytest.raises(RuntimeError, match="this is no model"):
        NodeSession(str(package), str(broken), optimize=False)


@needs_node
def test_the_process_is_used_again_unless_it_refuses_the_next_model(package: Path, model: str, tmp_path: Path) -> None:
    first = NodeSession(str(package), model, optimize=False)
    second = NodeSession(str(package), model, optimize=False, earlier=first)
    assert second._process is first._process
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no")
    with pytest.raises(RuntimeError, match="this is no model"):
        NodeSession(str(package), str(broken), optimize=False, earlier=second)
    assert second._process.poll() is not None
    third = NodeSession(str(package), model, optimize=False, earlier=second)
    try:
        assert third._process is not second._process
        (got,) = third.run(["y"], {"x": np.float32([1])}, tmp_path)
        assert got == 1
    finally:
        third.close()


@needs_node
@pytest.mark.parametrize(("content", "stays"), [(b"refused", True), (b"too large", False), (b"no", False)])
def test_a_process_that_says_why_it_refuses_a_model_is_used_for_the_next(
    package: Path, model: str, tmp_path: Path, content: bytes, *, stays: bool
) -> None:
    first = NodeSession(str(package), model, optimize=False)
    refused = tmp_path / "refused.onnx"
    refused.write_bytes(content)
    with pytest.raises(RuntimeError):
        NodeSession(str(package), str(refused), optimize=False, earlier=first)
    second = NodeSession(str(package), model, optimize=False, earlier=first)
    assert (second._process is first._process) is stays
    second.close()
    with Worker((), runtime=runtimes.find(str(package))) as worker:
        worker.open(Path(model), 1, None)
        worker.wait()
        worker.open(refused, 1, None)
        with pytest.raises(WorkerError):
            worker.wait()
        worker.open(Path(model), 1, None)
        assert worker.names == ["y"]


@needs_node
def test_models_beside_each_other_run_in_turns_in_one_process(package: Path, model: str, tmp_path: Path) -> None:
    counting = tmp_path / "counting.onnx"
    counting.write_bytes(b"counts")
    source = tmp_path / "in"
    store_inputs({"x": np.float32([1.5])}, source)

    def ran(worker: Worker, number: int, times: int) -> float:
        target = tmp_path / f"out{number}"
        (row,) = worker.run(source, target, Calls(number, times))
        return float(restore(target, row)[0])

    with Worker((), runtime=runtimes.find(str(package))) as worker:
        worker.open(Path(model), 1, None)
        worker.open(counting, 1, None, beside=True)
        assert [ran(worker, 0, 1), ran(worker, 1, 3), ran(worker, 0, 1), ran(worker, 1, 1)] == [1.5, 3, 1.5, 4]
        worker.open(counting, 1, None)
        assert ran(worker, -1, 1) == 1
        with pytest.raises(WorkerError):
            ran(worker, 1, 1)


@needs_node
def test_a_process_that_ends_is_an_error(package: Path, model: str, tmp_path: Path) -> None:
    session = NodeSession(str(package), model, optimize=False)
    try:
        with pytest.raises(RuntimeError, match="node ended with status 3"):
            session.run(["y"], {"x": np.float32(1)}, tmp_path)
    finally:
        session.close()


@needs_node
def test_it_is_found_by_its_folder_by_the_project_and_by_its_name(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "src"
    inside.mkdir()
    monkeypatch.chdir(inside)
    for text in (str(package), str(tmp_path), "onnxruntime-web"):
        runtime = runtimes.find(text)
        assert runtime.name == "ONNX Runtime Web 9.8.7"
        with Worker((), runtime=runtime) as worker:
            assert worker.runtime() == (runtime.name, ())


@needs_node
def test_a_verification_leaves_no_files(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    monkeypatch.setenv("TMPDIR", str(places))
    model = parse("m (float[2] x) => (float[2] y) { y = Identity (x) }")
    outcome = verify(model, model, runtimes=[runtimes.find(str(package))])
    assert [(one.agrees, one.reason) for one in outcome.elsewhere] == [(True, "")]
    assert list(places.iterdir()) == []


def test_a_package_that_is_nowhere_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="npm install onnxruntime-web"):
        runtimes.find("onnxruntime-web")


def test_another_package_is_none(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text(json.dumps({"name": "left-pad", "version": "1.0.0"}), encoding="utf-8")
    with pytest.raises(OSError, match="neither onnxruntime-web nor onnxruntime-node"):
        name_of(str(tmp_path))
