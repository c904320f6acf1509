"""Other runtimes to verify with: those that people deploy on, in a Python of theirs.

Each model runs in a process of that Python (`ortopt.verification.worker`), which needs numpy and the runtime alone. Of
ortopt's environment it imports nothing but ortopt.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.verification.process import Worker, WorkerError
from ortopt.verification.start import Runtime
from ortopt.verification.worker import OPENVINO


def find(text: str, token: CancellationToken = NEVER) -> Runtime:
    """The runtime that is meant.

    Args:
        text: The path of a Python, or of the folder of its environment, that has ONNX Runtime or OpenVINO; or
            ``openvino``, of this environment.
        token: Cancellation token.

    Raises:
        UsageError: There is no such Python, or it has no runtime.
    """
    if text == OPENVINO:
        if importlib.util.find_spec(OPENVINO) is None:
            raise UsageError("--verify-with openvino: OpenVINO is not installed here; pip install openvino")
        runtime = Runtime("", sys.executable, (OPENVINO,))
    else:
        runtime = Runtime("", _interpreter(text))
    try:
        with Worker((), token, runtime=runtime) as worker:
            return runtime._replace(name=worker.runtime())
    except (WorkerError, OSError) as error:
        needed = "it needs Python 3.10 or newer with numpy and ONNX Runtime or OpenVINO"
        raise UsageError(f"--verify-with {text}: {error}; {needed}") from error


def _interpreter(text: str) -> str:
    """The Python of a path, of an environment's folder, or of a name on the path of commands."""
    path = Path(text).expanduser()
    inside = (path / "bin" / "python", path / "Scripts" / "python.exe")
    candidates = [*inside, path] if path.is_dir() else [path]
    found = next((str(one) for one in candidates if one.is_file()), None) or shutil.which(text)
    if found is None:
        raise UsageError(f"--verify-with {text}: there is no such Python; name one that has ONNX Runtime or OpenVINO")
    return found
