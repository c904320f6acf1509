"""Models in MNN: what is given and what comes back; packages of their own stand for MNN's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ortopt.verification import runtimes
from ortopt.verification.input_sets import store_inputs
from ortopt.verification.process import Worker, WorkerError
from ortopt.verification.worker import restore

PACKAGES = {
    "_tools.py": """
from pathlib import Path
def mnnconvert(arguments):
    given = dict(zip(arguments[1::2], arguments[2::2]))
    print("what the converter prints is skipped")
    content = Path(given["--modelFile"]).read_bytes()
    if content != b"no":
        Path(given["--MNNModel"]).write_bytes(content)
""",
    "MNN/__init__.py": "version = lambda: '9.8.7'",
    "MNN/expr.py": """
import numpy
float, int, NCHW = numpy.float32, numpy.int32, "NCHW"
class placeholder:
    def __init__(self, shape, order, dtype): self.shape, self.dtype = shape, dtype
    def write(self, array):
        assert array.dtype == self.dtype and list(array.shape) == self.shape
        self.array = array
    def read(self): return self.array
""",
    "MNN/nn.py": """
class load_module_from_file:
    def __init__(self, path, inputs, outputs): open(path).close()
    def get_info(self): return {"inputNames": ["x", "k"], "outputNames": ["y", "z"]}
    def forward(self, given): return list(reversed(given))
""",
}


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A Python that has MNN and no other runtime."""
    folder = tmp_path / "packages"
    (folder / "MNN").mkdir(parents=True)
    for name, code in PACKAGES.items():
        (folder / name).write_text(code, encoding="utf-8")
    hidden = "import sys\nsys.modules['onnxruntime'] = sys.modules['openvino'] = None\n"
    find = "import importlib.util as u\nf = u.find_spec\n"
    hides = "u.find_spec = lambda n, *a: None if n in ('onnxruntime', 'openvino') else f(n, *a)\n"
    (folder / "sitecustomize.py").write_text(hidden + find + hides, encoding="utf-8")
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def test_arrays_are_given_in_32_bits_and_come_back_by_name(python: str, tmp_path: Path) -> None:
    runtime = runtimes.find(python)
    assert runtime.name == "MNN 9.8.7"
    model = tmp_path / "model.onnx"
    model.write_bytes(b"a model, for those who do not look")
    target = tmp_path / "out"
    inputs = {"k": np.array([[True, False]]), "x": np.array([1.5, -2.0], np.float16)}
    store_inputs(inputs, tmp_path / "in")
    with Worker(("CPUExecutionProvider",), runtime=runtime) as worker:
        worker.open(model, 1, None)
        assert worker.names == ["y", "z"]
        rows = worker.run(tmp_path / "in", target)
        y, z = (restore(target, row) for row in rows)
        assert worker.processor_seconds >= 0
    assert (y.dtype, y.tolist()) == (np.int32, [[1, 0]])
    assert (z.dtype, z.tolist()) == (np.float32, [1.5, -2.0])


def test_what_the_converter_refuses_is_an_error(python: str, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"no")
    with Worker(("CPUExecutionProvider",), runtime=runtimes.find(python)) as worker:
        worker.open(model, 1, None)
        with pytest.raises(WorkerError, match="MNN's converter refuses it"):
            worker.wait()
