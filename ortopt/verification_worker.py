"""The process in which a model is run to be verified: a model that kills its process does not kill ours.

``python -m ortopt.verification_worker MODEL FOLDER PROVIDERS`` makes a session without optimization, says so, and then
runs the inputs in ``FOLDER`` each time it reads a line; answers are JSON lines. Only numpy and onnxruntime are
imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ortopt.evaluation_child import Array, Raw, raw_of

# onnx.TensorProto.DataType by the names that onnxruntime and ml_dtypes give them.
_EXOTIC = {
    "bfloat16": 16,
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
}


def store(folder: Path, label: str, value: Any) -> Any:
    """Write an array, a list, a mapping or None into ``folder``; what is returned is JSON that `restore` takes."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return {"list": [store(folder, f"{label}.{i}", one) for i, one in enumerate(value)]}
    if isinstance(value, Mapping):
        keys, values = list(value), [float(one) if isinstance(one, float) else one for one in value.values()]
        return {"keys": keys, "values": values}
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        texts = [one.decode(errors="surrogateescape") if isinstance(one, bytes) else one for one in array.reshape(-1)]
        return {"texts": texts, "shape": array.shape}
    name = array.dtype.name.replace("_", "")
    if array.dtype.kind == "V" or name in _EXOTIC:
        raw = np.ascontiguousarray(array).view(np.uint16 if array.itemsize == 2 else np.uint8).reshape(array.shape)
        np.save(folder / f"{label}.npy", raw, allow_pickle=False)
        return {"file": f"{label}.npy", "exotic": _EXOTIC.get(name, 0)}
    np.save(folder / f"{label}.npy", array, allow_pickle=False)
    return {"file": f"{label}.npy", "exotic": 0}


def restore(folder: Path, row: Any) -> Any:
    """What `store` has written; bfloat16 and the like as their bits."""
    if row is None:
        return None
    if "list" in row:
        return [restore(folder, one) for one in row["list"]]
    if "keys" in row:
        return dict(zip(row["keys"], row["values"], strict=True))
    if "texts" in row:
        array = np.empty(tuple(row["shape"]), object)
        array.reshape(-1)[:] = row["texts"]
        return array
    return np.load(folder / row["file"], mmap_mode="r", allow_pickle=False)


def _run(session: Any, feeds: dict[str, Any], exotic: dict[str, int]) -> list[Any]:
    """Outputs as numpy arrays, lists or dicts; those that numpy has no dtype for as their bits."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    outputs = session.get_outputs()
    types = [one.type.removeprefix("tensor(").removesuffix(")") for one in outputs]
    if not exotic and not any(name in _EXOTIC or "int4" in name or "int2" in name for name in types):
        return list(session.run([one.name for one in outputs], feeds, options))
    make = onnxruntime.OrtValue
    values = {
        name: make.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), exotic[name])
        if name in exotic
        else make.ortvalue_from_numpy(np.ascontiguousarray(array))
        for name, array in feeds.items()
    }
    raws = [raw_of(value) for value in session.run_with_ort_values([one.name for one in outputs], values, options)]
    return [None if raw is None else _shaped(raw) for raw in raws]


def _shaped(raw: Raw) -> Array:
    """Bits of 8 or 16 in the tensor's shape; what is packed closer stays packed."""
    if raw.dtype not in _EXOTIC.values():
        return raw.data
    return raw.data.view(np.uint16 if raw.dtype == 16 else np.uint8).reshape(raw.shape)


def open_session(model: str, providers: list[str], quiet_planner: bool) -> Any:
    """A session without optimization; raises what ONNX Runtime raises."""
    import onnxruntime

    if "CUDAExecutionProvider" in providers:
        from ortopt.analysis.providers import usable

        usable("CUDAExecutionProvider")  # loads the libraries that the provider looks for
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if quiet_planner:
        options.enable_mem_reuse = False
        options.enable_mem_pattern = False
    return onnxruntime.InferenceSession(model, options, providers)


def run_stored(session: Any, source: Path, target: Path) -> list[Any]:
    """Run the inputs in one folder; the outputs are stored in the other. Raises what ONNX Runtime raises."""
    rows = json.loads((source / "values.json").read_bytes())
    feeds = {name: restore(source, row) for name, row in rows.items()}
    feeds = {name: value for name, value in feeds.items() if value is not None}
    exotic = {name: row["exotic"] for name, row in rows.items() if row and row.get("exotic")}
    target.mkdir(exist_ok=True)
    return [store(target, f"out{i}", value) for i, value in enumerate(_run(session, feeds, exotic))]


def main(
    model: str, folder: Path, providers: list[str], quiet_planner: bool, requests: TextIO, answers: TextIO
) -> None:
    """Serve until there are no more requests."""
    try:
        session = open_session(model, providers, quiet_planner)
    except Exception as error:
        _say(answers, {"failed": str(error)})
        return
    _say(answers, {"outputs": [[one.name, one.type] for one in session.get_outputs()]})
    for line in requests:
        source, target = (folder / name for name in json.loads(line))
        try:
            _say(answers, {"rows": run_stored(session, source, target)})
        except Exception as error:
            _say(answers, {"failed": str(error)})


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(","), sys.argv[4] == "1", sys.stdin, sys.stdout)
