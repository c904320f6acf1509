"""Other runtimes to verify with: those that people deploy on, in a Python of theirs, or in node.

Each model runs in a process of that Python (`ortopt.verification.worker`), which needs numpy and the runtime alone. Of
ortopt's environment it imports nothing but ortopt. Packages for JavaScript run in node, which a process of this Python
speaks to.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from ortopt.analysis.providers import CPU
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.verification.other_runtimes import NODE, OPENVINO, PACKAGES
from ortopt.verification.process import Worker, WorkerError
from ortopt.verification.start import Runtime


def find(text: str, token: CancellationToken = NEVER, providers: Iterable[str] = ()) -> Runtime:
    """The runtime that is meant.

    Args:
        text: The path of a Python, or of the folder of its environment, that has ONNX Runtime, OpenVINO
            or MNN;
            ``openvino``, of this environment; the folder of onnxruntime-web or onnxruntime-node, or the name of one
            that is in ``node_modules`` of the current folder or above.
        token: Cancellation token.
        providers: Full names of execution providers that models run on where the runtime is an ONNX Runtime in which
            they work; elsewhere they run on the CPU's.

    Raises:
        UsageError: There is no such Python, or it has no runtime.
    """
    if text == OPENVINO:
        if importlib.util.find_spec(OPENVINO) is None:
            raise UsageError("--verify-with openvino: OpenVINO is not installed here; pip install openvino")
        runtime = Runtime("", sys.executable, (OPENVINO,))
    elif (package := _package(text)) is not None:
        runtime = Runtime("", None, (f"{NODE}{package}",))
    else:
        runtime = Runtime("", _interpreter(text))
    try:
        with Worker((), token, runtime=runtime) as worker:
            name, working = worker.runtime(provider for provider in providers if provider != CPU)
            with_ = f" with {', '.join(working)}" if working else ""
            return runtime._replace(name=f"{name}{with_}", providers=working)
    except (WorkerError, OSError) as error:
        needed = (
            "it needs node"
            if runtime.interpreter is None
            else "it needs Python 3.10 or newer with numpy and ONNX Runtime, OpenVINO or MNN"
        )
        raise UsageError(f"--verify-with {text}: {error}; {needed}") from error


def _package(text: str) -> Path | None:
    """The folder of a package for JavaScript; None where none is meant."""
    if text in PACKAGES:
        here = Path.cwd()
        found = (folder / "node_modules" / text for folder in (here, *here.parents))
        package = next((folder for folder in found if folder.is_dir()), None)
        if package is None:
            raise UsageError(f"--verify-with {text}: it is in no node_modules here or above; npm install {text}")
        return package
    folder = Path(text).expanduser()
    inside = (folder, *(folder / "node_modules" / name for name in PACKAGES))
    return next((one.resolve() for one in inside if (one / "package.json").is_file() and one.name in PACKAGES), None)


def _interpreter(text: str) -> str:
    """The Python of a path, of an environment's folder, or of a name on the path of commands."""
    path = Path(text).expanduser()
    inside = (path / "bin" / "python", path / "Scripts" / "python.exe")
    candidates = [*inside, path] if path.is_dir() else [path]
    found = next((str(one) for one in candidates if one.is_file()), None) or shutil.which(text)
    if found is None:
        raise UsageError(
            f"--verify-with {text}: there is no such Python; name one that has ONNX Runtime, OpenVINO or MNN"
        )
    return found
