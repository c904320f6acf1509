"""The child process that runs a model of constants: ``python -m ortopt.evaluation.child PARENT FOLDER``.

It is given a folder with ``model.onnx``, ``job.json`` and one ``.npy`` file for each input. It writes ``done.json`` and
a file for each output. Whatever kills it, the parent (`ortopt.evaluation.execution`) sees an exit status. Nothing but
numpy and onnxruntime is imported here: a child starts for every batch that is not known to be safe.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ortopt.evaluation.raw_tensors import STRING, Raw, run_session, save_array
from ortopt.system.child_processes import end_with, limit_memory


def main(folder: Path) -> None:
    """Run the job in ``folder``."""
    job = json.loads((folder / "job.json").read_bytes())
    limit_memory(space=job["memory"], data=job["data"])
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
    feeds = {name: np.load(folder / f"{i}.npy", mmap_mode="r") for i, name in enumerate(job["feeds"])}
    done: list[list[Any] | None] = []
    for i, raw in enumerate(run_session(session, feeds, job["fetch"], job["seconds"])):
        if raw is None or _nbytes(raw) > job["limit"]:
            done.append(None)
        elif raw.dtype == STRING:
            done.append([raw.dtype, raw.shape, [one.hex() for one in raw.data.reshape(-1)]])
        else:
            save_array(folder / f"out{i}.npy", raw.data)
            done.append([raw.dtype, raw.shape, None])
    (folder / "done.json").write_text(json.dumps(done), encoding="utf-8")


def _nbytes(raw: Raw) -> int:
    return sum(map(len, raw.data.reshape(-1))) if raw.dtype == STRING else raw.data.nbytes


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    main(Path(sys.argv[2]))
