"""Sessions of other runtimes than onnxruntime's Python package, with the few methods of its session that are used.

Only numpy is imported here at first: processes of other Pythons, from 3.10 on, run them (`ortopt.verification.worker`).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

OPENVINO: Final = "openvino"
MNN: Final = "MNN"
NODE: Final = "node:"
"""Begins what names a package of ONNX Runtime for JavaScript; its folder follows."""

PACKAGES: Final = {"onnxruntime-web": "ONNX Runtime Web", "onnxruntime-node": "ONNX Runtime Node"}

_MARK: Final = "\x1eortopt "  # begins an answer of the node process: the runtime prints what it likes beside it
_REFUSAL: Final = "ERROR_CODE: "  # is in what ONNX Runtime Web itself says
_FULL: Final = "bad_alloc"
_NODE_TYPES: Final = {"float32": "float", "float64": "double"}
_OPENVINO_TYPES: Final = {
    **{"f16": "float16", "f32": "float", "f64": "double", "bf16": "bfloat16", "boolean": "bool"},
    **{f"{sign}{bits}": f"{kind}{bits}" for sign, kind in (("i", "int"), ("u", "uint")) for bits in (4, 8, 16, 32, 64)},
}


class Output(NamedTuple):
    """Name and type of an output, as ONNX Runtime's Python package gives them.

    Attributes:
        name: The name.
        type: E.g. ``tensor(float)``.
    """

    name: str
    type: str


class OpenVinoSession:
    """A model that OpenVINO has compiled for the CPU.

    Args:
        model: The file.
    """

    def __init__(self, model: str) -> None:
        openvino = importlib.import_module(OPENVINO)
        compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        self._inputs = [sorted(one.get_names()) for one in compiled.inputs]
        self._outputs = [
            Output(one.get_any_name(), f"tensor({_OPENVINO_TYPES.get(kind, kind)})")
            for one in compiled.outputs
            for kind in (one.get_element_type().get_type_name(),)
        ]
        self._request = compiled.create_infer_request()

    def get_outputs(self) -> list[Output]:
        """The outputs, in order."""
        return self._outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], folder: Path) -> list[Any]:
        """Run it; what it gives is copied, as the next run overwrites it.

        Args:
            names: Of outputs.
            feeds: Arrays by name; those of inputs that nothing reads are left out.
            folder: Is not needed.
        """
        taken = {own[0]: feeds[name] for own in self._inputs for name in own if name in feeds}
        results = self._request.infer(taken, share_inputs=False, share_outputs=False)
        arrays = dict(zip((output.name for output in self._outputs), results.values(), strict=True))
        return [np.array(arrays[name]) for name in names]

    def close(self) -> None:
        """Nothing is left behind."""


class MnnSession:
    """A model that MNN's converter has translated, in MNN on the CPU with one thread.

    MNN has 32-bit numbers: other integers and truth values come and go as int32. The converter is called in this
    process, since its command sends statistics.

    Args:
        model: The file.

    Raises:
        RuntimeError: The converter refuses the model.
    """

    def __init__(self, model: str) -> None:
        tools = importlib.import_module("_tools")
        self._expressions = importlib.import_module("MNN.expr")
        self._numbers = {"f": (self._expressions.float, np.float32), "i": (self._expressions.int, np.int32)}
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.mnn")
            tools.mnnconvert(["mnnconvert", "-f", "ONNX", "--modelFile", model, "--MNNModel", path, "--bizCode", "-"])
            if not Path(path).exists():
                raise RuntimeError("MNN's converter refuses it")
            self._module = importlib.import_module("MNN.nn").load_module_from_file(path, [], [])
        stated = self._module.get_info()
        self._inputs: list[str] = stated["inputNames"]
        self._outputs = [Output(name, "tensor()") for name in stated["outputNames"]]

    def get_outputs(self) -> list[Output]:
        """The outputs, in order; their types are known when they are there."""
        return self._outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], folder: Path) -> list[Any]:
        """Run it.

        Args:
            names: Of outputs.
            feeds: Arrays by name; those of inputs that nothing reads are left out.
            folder: Is not needed.
        """
        results = self._module.forward([self._given(feeds[name]) for name in self._inputs])
        found = results if isinstance(results, list) else [results]
        arrays = {output.name: np.array(one.read()) for output, one in zip(self._outputs, found, strict=True)}
        return [arrays[name] for name in names]

    def _given(self, array: np.ndarray[Any, Any]) -> Any:
        kind, dtype = self._numbers["f" if array.dtype.kind == "f" else "i"]
        value = self._expressions.placeholder(list(array.shape), self._expressions.NCHW, kind)
        value.write(np.ascontiguousarray(array, dtype))
        return value


class NodeSession:
    """A model in a process of node, which loads a package of ONNX Runtime for JavaScript.

    Args:
        package: The package's folder.
        model: The file; its weights may be in other files of its folder.
        optimize: Whether the runtime optimizes it.
        earlier: A session whose process is used again.
        number: Of the model among those of the process: it takes the place of those from this number on.

    Raises:
        OSError: There is no node.
        RuntimeError: The runtime refuses the model.

    Attributes:
        seconds: Processor time of the last run, or the mean of several.
    """

    seconds = 0.0

    def __init__(
        self, package: str, model: str, *, optimize: bool, earlier: NodeSession | None = None, number: int = 0
    ) -> None:
        from ortopt.serialization.scan import external_files  # imports onnx, which other Pythons need not have

        folder = Path(model).parent
        beside = [(path.relative_to(folder).as_posix(), str(path)) for path in external_files(model)]
        request = {"model": model, "beside": beside, "optimize": optimize, "number": number}
        self._number = number
        if earlier is None or (answer := self._taken_over(earlier, request)) is None:
            self._process = subprocess.Popen(
                [node(), str(Path(__file__).with_name("node_worker.mjs")), package],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            try:
                answer = self._ask(request)
            except BaseException:
                self.close()
                raise
        self._outputs = [Output(name, f"tensor({_NODE_TYPES.get(kind, kind)})") for name, kind in answer["outputs"]]

    def _taken_over(self, earlier: NodeSession, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """An earlier session's answer, whose process is this one's then; None where it refuses, and has ended."""
        self._process = earlier._process
        if self._process.poll() is not None:
            return None
        try:
            return self._ask(request)
        except (RuntimeError, OSError) as error:
            if _REFUSAL in str(error) and _FULL not in str(error):
                raise  # the process stays, for the next model
            if self._number:
                raise  # so do the models beside it
            earlier.close()  # the one before may have broken it, or filled its memory
            return None

    def get_outputs(self) -> list[Output]:
        """The outputs, in order."""
        return self._outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], folder: Path, times: int = 1) -> list[Any]:
        """Run it.

        Args:
            names: Of outputs.
            feeds: Arrays by name.
            folder: Where the two processes leave arrays for each other; the caller removes it, who may end both.
            times: How many times it runs.

        Raises:
            RuntimeError: The runtime refuses them, or has ended.
        """
        given = {name: _stored(folder / f"in{i}", np.asarray(array)) for i, (name, array) in enumerate(feeds.items())}
        answer = self._ask({"feeds": given, "out": str(folder / "node"), "number": self._number, "times": times})
        self.seconds = answer["seconds"]
        arrays = dict(zip((output.name for output in self._outputs), map(_loaded, answer["results"]), strict=True))
        return [arrays[name] for name in names]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            text = line.decode("utf-8", "replace")
            if text.startswith(_MARK):
                answer: dict[str, Any] = json.loads(text.removeprefix(_MARK))
                if "failed" in answer:
                    raise RuntimeError(answer["failed"])
                return answer
        raise RuntimeError(f"node ended with status {self._process.wait()}")


def node() -> str:
    """The program ``node``.

    Raises:
        OSError: There is none.
    """
    found = shutil.which("node")
    if found is None:
        raise OSError("there is no node on the path of commands")
    return found


def name_of(package: str) -> str:
    """What people call a package of ONNX Runtime for JavaScript, with its release.

    Args:
        package: Its folder.

    Raises:
        OSError: It is none.
    """
    stated = json.loads((Path(package) / "package.json").read_text(encoding="utf-8"))
    if stated.get("name") not in PACKAGES:
        raise OSError(f"{package} is neither {' nor '.join(PACKAGES)}")
    return f"{PACKAGES[stated['name']]} {stated['version']}"


def _stored(path: Path, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.dtype.kind in "OSU":
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in array.reshape(-1)]
        return {"type": "string", "dims": array.shape, "texts": texts}
    path.write_bytes(np.ascontiguousarray(array).tobytes())
    return {"type": array.dtype.name, "dims": array.shape, "file": str(path)}


def _loaded(stored: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    shape = tuple(stored["dims"])
    if stored["type"] == "string":
        texts = np.empty(shape, object)
        texts.reshape(-1)[:] = stored["texts"]
        return texts
    return np.frombuffer(Path(stored["file"]).read_bytes(), stored["type"]).reshape(shape)
