"""Runs a serialized model of constants: in this process, or in a child process under limits of time and memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.evaluation.call import Array, HazardError
from ortopt.evaluation.numpy_kernels import LAZY_BYTES
from ortopt.evaluation.raw_tensors import Raw, run_session, save_array
from ortopt.evaluation.sessions import session
from ortopt.system import child_processes, memory

_MODULE: Final = "ortopt.evaluation.child"
_CHILD_MEMORY: Final = 8 << 30
NUMPY_DTYPES: Final = frozenset(
    ir.DataType.from_numpy(np.dtype(code))
    for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)


def run_model(
    model: bytes,
    feeds: Mapping[str, Array],
    fetch: Sequence[str],
    seconds: float,
    token: CancellationToken = NEVER,
) -> list[ir.TensorProtocol | None]:
    """Run a serialized model on the CPU without optimization, for ``seconds`` at most; None for what is no tensor.

    A token that is set ends the run; that raises whatever ONNX Runtime raises.
    """
    small = sum(array.nbytes for array in feeds.values()) < LAZY_BYTES
    opened = session(model, threads=1 if small else None)
    return [tensor_from(raw) for raw in run_session(opened, feeds, fetch, seconds, lambda: token.is_cancelled)]


def run_in_child(
    model: bytes,
    feeds: Mapping[str, Array],
    fetch: Sequence[str],
    limit_bytes: int,
    seconds: float,
    token: CancellationToken,
) -> list[ir.TensorProtocol | None]:
    """Run a serialized model on the CPU without optimization, in a child process; None for what is no tensor.

    Args:
        model: The model.
        feeds: Arrays of dtypes that numpy has.
        fetch: The outputs to compute.
        limit_bytes: The size from which an output is left out.
        seconds: Seconds after which the child is ended.
        token: Cancellation token.

    Raises:
        OptimizationCancelled: If the token was set.
        HazardError: The child took too long, or failed.
        OSError: There is no room for a child process and its files.
    """
    with tempfile.TemporaryDirectory(prefix="ortopt-") as name:
        folder = Path(name)
        (folder / "model.onnx").write_bytes(model)
        for i, array in enumerate(feeds.values()):
            save_array(folder / f"{i}.npy", array)
        job = {
            "feeds": list(feeds),
            "fetch": list(fetch),
            "seconds": seconds,
            "memory": _CHILD_MEMORY + 4 * limit_bytes + 4 * sum(array.nbytes for array in feeds.values()),
            "data": memory.remaining(),
            "limit": limit_bytes,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        status = child_processes.run(_MODULE, name, seconds=seconds, token=token).status
        if status is None:
            raise HazardError("it takes too long")
        if status:
            raise HazardError("the child process failed")
        return [tensor_from(raw) for raw in _results(folder)]


def _results(folder: Path) -> list[Raw | None]:
    """What a child that ended well has left in ``folder``."""
    raw_tensors: list[Raw | None] = []
    for i, row in enumerate(json.loads((folder / "done.json").read_bytes())):
        if row is None:
            raw_tensors.append(None)
            continue
        dtype, shape, texts = row
        if texts is None:
            data = np.load(folder / f"out{i}.npy", allow_pickle=False)
        else:
            data = np.empty(tuple(shape), object)
            data.reshape(-1)[:] = [bytes.fromhex(text) for text in texts]
        raw_tensors.append(Raw(dtype, tuple(shape), data))
    return raw_tensors


def tensor_from(raw: Raw | None) -> ir.TensorProtocol | None:
    """A tensor of the IR from one of ONNX Runtime."""
    if raw is None:
        return None
    dtype, shape = ir.DataType(raw.dtype), ir.Shape(raw.shape)
    if dtype == ir.DataType.STRING:
        return ir.StringTensor(raw.data, shape=shape)
    if dtype in NUMPY_DTYPES:
        return ir.Tensor(raw.data, dtype, shape=shape)
    if dtype.bitwidth < 8:
        return ir.PackedTensor(raw.data, dtype, shape=shape)
    return ir.Tensor(raw.data.view(dtype.numpy()).reshape(raw.shape), dtype, shape=shape)
