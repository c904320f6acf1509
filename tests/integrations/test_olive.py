"""The pass for Olive, with the real package: alone, in a workflow, with weights beside the model, and refused."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortopt
from ortopt.serialization.save import save
from ortopt.testing import parse

pytest.importorskip("olive", reason="olive-ai is not installed here: make test-integrations installs it")

import olive
from olive.hardware import DEFAULT_CPU_ACCELERATOR, AcceleratorSpec
from olive.model import CompositeModelHandler, ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict

from ortopt.integrations.olive import OrtoptOptimization, package_config

MODEL = """<ir_version: 9, opset_import: ["" : 17]>
main (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}, float[4] b = {1,2,3,4}> {
    i = Identity (x) m = MatMul (i, w) a = Add (m, b) y = Relu (a) }"""


@pytest.fixture
def model(tmp_path: Path) -> ONNXModelHandler:
    path = tmp_path / "given" / "net.onnx"
    path.parent.mkdir()
    save(parse(MODEL), path)
    return ONNXModelHandler(str(path), inference_settings={"execution_provider": ["CPUExecutionProvider"]})


def made(config: dict[str, Any] | None = None, accelerator: AcceleratorSpec = DEFAULT_CPU_ACCELERATOR) -> Any:
    return create_pass_from_dict(OrtoptOptimization, config or {}, disable_search=True, accelerator_spec=accelerator)


def ops(path: str | Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_it_optimizes_a_model(model: ONNXModelHandler, tmp_path: Path) -> None:
    result = made({"level": 1, "target": "onnx"}).run(model, str(tmp_path / "out"))
    assert Path(result.model_path) == tmp_path / "out" / "net.onnx"
    assert ops(result.model_path) == ["Gemm", "Relu"]
    assert ops(model.model_path) == ["Identity", "MatMul", "Add", "Relu"], "the input stays"
    assert result.inference_settings == model.inference_settings
    x = np.arange(8, dtype=np.float32).reshape(2, 4) - 4
    want, got = (handler.prepare_session().run(None, {"x": x})[0] for handler in (model, result))
    np.testing.assert_array_equal(got, want)


def test_parameters_are_the_arguments_of_optimize(model: ONNXModelHandler, tmp_path: Path) -> None:
    config = {"level": "O1", "disable": "identity_elimination", "dims": {"N": 3}, "verify": False}
    result = made(config).run(model, str(tmp_path / "out"))
    assert "Identity" in ops(result.model_path)
    assert [dim.dim_value for dim in onnx.load(result.model_path).graph.input[0].type.tensor_type.shape.dim] == [3, 4]


def test_what_another_release_has_made_is_not_taken_from_olives_cache() -> None:
    assert made().config.release == ortopt.__version__


def test_the_accelerators_provider_is_what_is_optimized_for() -> None:
    for provider in ("CUDAExecutionProvider", "OpenVINOExecutionProvider"):
        config = made(accelerator=AcceleratorSpec("gpu", provider)).config
        assert config.providers == [provider, "CPUExecutionProvider"]
    assert made(accelerator=DEFAULT_CPU_ACCELERATOR).config.providers == ["CPUExecutionProvider"]
    assert made({"providers": "cpu"}, AcceleratorSpec("gpu", "CUDAExecutionProvider")).config.providers == "cpu"


def test_weights_beside_the_model_are_found_by_olive(model: ONNXModelHandler, tmp_path: Path) -> None:
    weights = f"float[64,64] w = {{{', '.join(map(str, range(64 * 64)))}}}"
    large = f"main (float[N,64] x) => (float[N,64] y) <{weights}> {{ m = MatMul (x, w) y = Relu (m) }}"
    save(parse(large), model.model_path)
    result = made({"external_data": "copy"}).run(model, str(tmp_path / "out"))
    assert [path.suffix for path in sorted((tmp_path / "out").iterdir())] == [".data", ".onnx"]
    assert result.onnx_file_name == "net.onnx"
    assert result.prepare_session().get_inputs()[0].name == "x"


def test_what_olive_keeps_beside_a_model_goes_with_it(model: ONNXModelHandler, tmp_path: Path) -> None:
    folder = Path(model.model_path).parent
    np.savez(folder / "constants.npz", c=np.ones(2))
    given = ONNXModelHandler(str(folder), onnx_file_name="net.onnx", constant_inputs_file_name="constants.npz")
    result = made().run(given, str(tmp_path / "out"))
    assert Path(result.constant_inputs_path) == tmp_path / "out" / "constants.npz"


def test_each_part_of_a_composite_model_is_optimized(model: ONNXModelHandler, tmp_path: Path) -> None:
    both = CompositeModelHandler([model, model], ["encoder", "decoder"])
    result = made({"level": 1}).run(both, str(tmp_path / "out"))
    assert [ops(part.model_path) for _, part in result.get_model_components()] == [["Gemm", "Relu"]] * 2


@pytest.mark.parametrize("wrong", [{"level": 7}, {"target": "tflite"}, {"providers": "cpus"}, {"dims": ["N"]}])
def test_parameters_that_make_no_sense_are_told_of(wrong: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("olive")  # which hands nothing on
    log.addHandler(caplog.handler)
    try:
        assert not OrtoptOptimization.validate_config(made(wrong).config, DEFAULT_CPU_ACCELERATOR)
    finally:
        log.removeHandler(caplog.handler)
    assert "OrtoptOptimization: " in caplog.text
    assert OrtoptOptimization.validate_config(made().config, DEFAULT_CPU_ACCELERATOR)


def test_it_is_a_step_of_a_workflow(model: ONNXModelHandler, tmp_path: Path) -> None:
    workflow = {
        "input_model": {"type": "OnnxModel", "model_path": model.model_path},
        "passes": {"optimize": {"type": "OrtoptOptimization", "level": 1, "target": "onnx"}},
        "output_dir": str(tmp_path / "out"),
        "cache_dir": str(tmp_path / "cache"),
    }
    found = olive.run(workflow, package_config=package_config())
    assert ops(found.get_best_candidate().model_path) == ["Gemm", "Relu"]


def test_the_package_configuration_is_printed_for_the_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ortopt.integrations.olive"],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert json.loads(done.stdout) == package_config()
