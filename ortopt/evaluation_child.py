"""The child process of `ortopt.evaluate`: runs one untrusted model under limits, ``python -m ... FOLDER``.

The folder has ``model.onnx``, ``job.json`` and one ``.npy`` file for each input; ``0.pb``, ``1.pb``, ... (TensorProto)
are written for the outputs that are tensors. Whatever happens here, the parent sees an exit status.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Run the job in ``folder``."""
    job = json.loads((folder / "job.json").read_bytes())
    _limit_memory(job["memory"])
    import numpy as np
    import onnx_ir as ir

    from ortopt.evaluate import run_model

    feeds = {name: np.load(folder / f"{i}.npy", mmap_mode="r") for i, name in enumerate(job["feeds"])}
    results = run_model((folder / "model.onnx").read_bytes(), feeds, job["fetch"], job["seconds"])
    for i, tensor in enumerate(results):
        if tensor is not None and tensor.nbytes <= job["limit"]:
            (folder / f"{i}.pb").write_bytes(ir.serde.serialize_tensor(tensor).SerializeToString())


def _limit_memory(nbytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows; the time limit holds there too
        return
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
