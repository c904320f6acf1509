"""The process in which a model is run to be verified: a model that kills its process does not kill ours.

``python -m ortopt.verification.worker PARENT [RUNTIME]`` imports a runtime, and reads JSON lines: an object says of
which model it is to make a session and how many bytes it may take, a list names two folders, of inputs and for outputs,
how a session is called (`ortopt.verification.process.Calls`), null lets go of all sessions, and a text, ``"runtime"``
and execution providers, asks for the runtime's name and which of these work there. Answers are JSON lines, with the
seconds that it took.

``PARENT`` is the process without which this one ends. ``RUNTIME`` is ``onnxruntime``, ``openvino``, ``MNN``, or
``node:`` with the folder of a package for JavaScript; without it the first that is installed. Only numpy and the
runtime are imported: the Python may be another one than ours, from 3.10 on (`ortopt.verification.runtimes`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import pkgutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from ortopt.evaluation.caches import empty_caches
from ortopt.evaluation.raw_tensors import Array, Place, Raw, keep, kept, kept_rows, make, raw_of
from ortopt.serialization.wire import field, integer
from ortopt.system.child_processes import end_with, limit_memory, take_streams
from ortopt.verification.other_runtimes import (
    MNN,
    NODE,
    OPENVINO,
    MnnSession,
    NodeSession,
    OpenVinoSession,
    name_of,
    node,
)

ONNXRUNTIME: Final = "onnxruntime"
_CPU: Final = "CPUExecutionProvider"
_PLUGINS: Final = ("onnxruntime_ep_", "onnxruntime_qnn")
"""What the names of packages with an execution provider begin with; ``onnxruntime_genai`` and others are no such."""

_SIMULATED: Final = {"soc_model": "57", "htp_arch": "75"}
"""What QNN's library simulates on a CPU: the tensor processor of a Snapdragon 8 Gen 3, with half precision."""

# onnx.TensorProto.DataType by the names that onnxruntime and ml_dtypes give them.
_EXOTIC = {
    "bfloat16": 16,
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
    "uint4": 21,
    "int4": 22,
    "float4e2m1": 23,
    "float4e2m1fn": 23,
    "float8e8m0": 24,
    "float8e8m0fnu": 24,
    "uint2": 25,
    "int2": 26,
}
_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}


def store(place: Place, label: str, value: Any) -> Any:
    """Keep an array, a list, a mapping or None in ``place``; what is returned is JSON that `restore` takes."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return {"list": [store(place, f"{label}.{i}", item) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        values = [float(number) if isinstance(number, float) else number for number in value.values()]
        return {"keys": list(value), "values": values}
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        texts = [
            text.decode(errors="surrogateescape") if isinstance(text, bytes) else text for text in array.reshape(-1)
        ]
        return {"texts": texts, "shape": array.shape}
    name = array.dtype.name.replace("_", "")
    if array.dtype.kind == "V" or name in _EXOTIC:
        raw = np.ascontiguousarray(array).view(np.uint16 if array.itemsize == 2 else np.uint8).reshape(array.shape)
        keep(place, f"{label}.npy", raw)
        return {"file": f"{label}.npy", "exotic": _EXOTIC.get(name, 0)}
    keep(place, f"{label}.npy", array)
    return {"file": f"{label}.npy", "exotic": 0}


def restore(place: Place, row: Any) -> Any:
    """What `store` has kept; bfloat16 and the like as their bits."""
    if row is None:
        return None
    if "list" in row:
        return [restore(place, item) for item in row["list"]]
    if "keys" in row:
        return dict(zip(row["keys"], row["values"], strict=True))
    if "texts" in row:
        array = np.empty(tuple(row["shape"]), object)
        array.reshape(-1)[:] = row["texts"]
        return array
    return kept(place, row["file"])


def _run(session: Any, feeds: dict[str, Any], exotic: dict[str, int]) -> list[Any]:
    """Outputs as numpy arrays, lists or dicts; those that numpy has no dtype for as their bits."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    outputs = session.get_outputs()
    types = [output.type.removeprefix("tensor(").removesuffix(")") for output in outputs]
    taken = {name: _value(array, exotic[name]) if name in exotic else array for name, array in feeds.items()}
    coded = [name for name, type_ in zip((output.name for output in outputs), types, strict=True) if type_ in _EXOTIC]
    if not coded:
        return list(session.run([output.name for output in outputs], taken, options))
    values = {name: _held(value) for name, value in taken.items()}
    results = dict(zip(coded, session.run_with_ort_values(coded, values, options), strict=True))
    others = [output.name for output in outputs if output.name not in results]
    rest = dict(zip(others, session.run(others, taken, options), strict=True)) if others else {}
    return [
        _shaped(raw_of(results[output.name])) if output.name in results else rest[output.name] for output in outputs
    ]


def _held(value: Any) -> Any:
    """An OrtValue of what `onnxruntime.InferenceSession.run` takes as it is."""
    import onnxruntime

    if isinstance(value, onnxruntime.OrtValue):
        return value
    if not isinstance(value, np.ndarray):
        raise TypeError("sequences cannot be given where results are of types that numpy has not")
    if value.dtype.kind not in "OSU":
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
    return _strings(value)


def _strings(array: Array) -> Any:
    """An OrtValue of strings, which onnxruntime makes of no array: the result of a model that is that constant."""
    import onnxruntime

    texts = [text.encode(errors="surrogateescape") if isinstance(text, str) else text for text in array.reshape(-1)]
    dims = b"".join(integer(1, dim) for dim in array.shape)
    tensor = dims + integer(2, 8) + b"".join(field(6, text) for text in texts) + field(8, b"s")
    output = field(1, b"s") + field(2, field(1, integer(1, 8)))
    graph = field(2, b"strings") + field(5, tensor) + field(12, output)
    model = integer(1, 8) + field(7, graph) + field(8, integer(2, 17))
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run_with_ort_values(["s"], {})[0]


def _value(array: Array, dtype: int) -> Any:
    """An OrtValue of a dtype that numpy has not, from its bits, one element a byte where they are less than 8."""
    import onnxruntime

    bits = _BITS.get(dtype)
    held = np.array(array)
    if bits is not None:
        flat = held.reshape(-1).view(np.uint8) & ((1 << bits) - 1)
        each = 8 // bits
        flat = np.concatenate([flat, np.zeros(-flat.size % each, np.uint8)]).reshape(-1, each)
        packed = np.bitwise_or.reduce(flat << np.arange(0, 8, bits, dtype=np.uint8), axis=1)
        held = np.zeros(array.size, np.uint8)
        held[: packed.size] = packed  # onnxruntime takes the shape from the array, and reads as many bytes as it needs
        held = held.reshape(array.shape)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(held), dtype)


def _shaped(raw: Raw | None) -> Array | None:
    """Bits in the tensor's shape, an element for each of the tensor's."""
    if raw is None:
        return None
    bits = _BITS.get(raw.dtype)
    if bits is not None:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        elements = (raw.data.reshape(-1, 1) >> shifts) & np.uint8((1 << bits) - 1)
        return elements.reshape(-1)[: int(np.prod(raw.shape))].reshape(raw.shape)
    if raw.dtype not in _EXOTIC.values():
        return raw.data
    return raw.data.view(np.uint16 if raw.dtype == 16 else np.uint8).reshape(raw.shape)


def open_session(
    model: str | bytes,
    providers: list[str],
    quiet_planner: bool,
    *,
    optimize: bool = False,
    libraries: Sequence[str] = (),
    is_large: bool = False,
    threads: int = 0,
) -> Any:
    """A session, without optimization unless that is asked for; raises what ONNX Runtime raises.

    Weights of a large model stay in the file that they are mapped from: no kernel gets a copy that is packed for it.
    As many threads as ONNX Runtime likes compute it where their number is 0. The CPU's provider takes the nodes that no
    other takes where it is named; where it is not, a model with such nodes is refused.
    """
    import onnxruntime

    if "CUDAExecutionProvider" in providers:
        from ortopt.analysis.providers import usable

        usable("CUDAExecutionProvider")  # loads the libraries that the provider looks for
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    for library in libraries:
        options.register_custom_ops_library(library)
    if is_large:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if quiet_planner:
        options.enable_mem_reuse = False
        options.enable_mem_pattern = False
    if _CPU not in providers:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if (plugged := next(filter(None, map(_plugged_in, providers)), None)) is not None:
        options.add_provider_for_devices(*plugged)
        return onnxruntime.InferenceSession(model, options)
    session = onnxruntime.InferenceSession(model, options, providers)
    if session.get_providers()[0] != providers[0]:  # it has been made again without what did not work
        raise RuntimeError(f"{providers[0]} does not work")
    return session


def _is_processor(device: Any) -> bool:
    """Whether a device of an execution provider is the CPU."""
    return str(device.device.type.name) == "CPU"


@functools.cache
def _plugged_in(provider: str) -> tuple[list[Any], dict[str, str]] | None:
    """A device and settings of an execution provider that is a package of its own; None where it is none.

    Such a package names its provider and its library by two functions.
    """
    if provider == _CPU:
        return None
    import onnxruntime

    for name in (one.name for one in pkgutil.iter_modules() if one.name.startswith(_PLUGINS)):
        package = importlib.import_module(name)
        if provider in getattr(package, "get_ep_names", tuple)():
            onnxruntime.register_execution_provider_library(provider, package.get_library_path())
            known: list[Any] = getattr(onnxruntime, "get_ep_devices", list)()  # since 1.22
            devices = [device for device in known if device.ep_name == provider]
            devices.sort(key=_is_processor)  # what it is made for comes first
            simulator = getattr(package, "get_qnn_htp_path", None)
            if simulator is None or not all(map(_is_processor, devices)):
                return devices[:1], {}
            return devices[:1], {"backend_path": simulator(), **_SIMULATED}
    return None


def run_stored(session: Any, source: Place, target: Place, times: int = 1) -> tuple[list[Any], float]:
    """Run the inputs in one place; the outputs are kept in the other. Raises what ONNX Runtime raises.

    Returns:
        What is kept of each output, and the seconds of processor time of a run itself, of all threads: the mean of
        several.
    """
    rows = kept_rows(source)
    feeds = {name: restore(source, row) for name, row in rows.items()}
    feeds = {name: value for name, value in feeds.items() if value is not None}
    exotic = {name: row["exotic"] for name, row in rows.items() if row and row.get("exotic")}
    make(target)
    if isinstance(session, NodeSession):
        assert isinstance(target, Path)
        results = session.run([output.name for output in session.get_outputs()], feeds, target, times)
        return [store(target, f"out{i}", value) for i, value in enumerate(results)], session.seconds
    started = time.process_time()
    for _ in range(times):
        if isinstance(session, OpenVinoSession | MnnSession):
            assert isinstance(target, Path)
            results = session.run([output.name for output in session.get_outputs()], feeds, target)
        else:
            results = _run(session, feeds, exotic)
    spent = (time.process_time() - started) / times
    return [store(target, f"out{i}", value) for i, value in enumerate(results)], spent


def _lacks_room(error: Exception) -> bool:
    if not isinstance(error, OSError):
        return False
    from ortopt.system.files import is_lack_of_room

    return is_lack_of_room(error)


def _runtime_name(runtime: str) -> str:
    """The runtime's name and release; raises ImportError where it is not installed."""
    if runtime == OPENVINO:
        openvino = importlib.import_module(OPENVINO)
        return f"OpenVINO {openvino.__version__.partition('-')[0]}"
    if runtime == MNN:
        return f"MNN {importlib.import_module(MNN).version()}"
    if runtime.startswith(NODE):
        node()
        return name_of(runtime.removeprefix(NODE))
    import onnxruntime

    return f"ONNX Runtime {onnxruntime.__version__}"


def _working(providers: Iterable[str]) -> list[str]:
    """Those of ONNX Runtime's providers that make a session, of a Relu of one number."""
    number = field(2, field(1, integer(1, 1) + field(2, field(1, integer(1, 1)))))
    node = field(1, b"x") + field(2, b"y") + field(4, b"Relu")
    values = field(11, field(1, b"x") + number) + field(12, field(1, b"y") + number)
    model = integer(1, 8) + field(7, field(1, node) + field(2, b"relu") + values) + field(8, integer(2, 17))
    working = []
    for provider in providers:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
            open_session(model, [provider, _CPU], quiet_planner=False)
            working.append(provider)
    return working


def _chosen(arguments: Sequence[str]) -> str:
    """The runtime that is named, or the first that is installed."""
    if arguments:
        return arguments[0]
    found = (name for name in (ONNXRUNTIME, OPENVINO, MNN) if importlib.util.find_spec(name) is not None)
    return next(found, ONNXRUNTIME)


def _make(request: Mapping[str, Any], runtime: str, sessions: list[Any]) -> None:
    """Make a session that is asked for, in the place of those that are there, or beside them."""
    earlier = next((one for one in sessions if isinstance(one, NodeSession)), None)
    if not request["beside"]:
        sessions[:] = [] if earlier is None else [earlier]  # its process is used again, or ended
    if request["memory"] is not None:
        limit_memory(data=request["memory"])
    model = request["model"]
    if runtime == OPENVINO:
        made: Any = OpenVinoSession(model)
    elif runtime == MNN:
        made = MnnSession(model)
    elif runtime.startswith(NODE):
        number = len(sessions) if request["beside"] else 0
        package = runtime.removeprefix(NODE)
        made = NodeSession(package, model, optimize=request["optimize"], earlier=earlier, number=number)
    else:
        made = open_session(
            model,
            request["providers"],
            request["quiet"],
            optimize=request["optimize"],
            libraries=request["libraries"],
            is_large=request["large"],
        )
    sessions[:] = [*sessions, made] if request["beside"] else [made]


def main(requests: BinaryIO, answers: BinaryIO, runtime: str = ONNXRUNTIME) -> None:
    """Serve until there are no more requests."""
    sessions: list[Any] = []
    for line in requests:
        request = json.loads(line)
        started = time.perf_counter()
        try:
            if isinstance(request, dict):
                _make(request, runtime, sessions)
                outputs = [[output.name, output.type] for output in sessions[-1].get_outputs()]
                answer: dict[str, Any] = {"outputs": outputs}
            elif request is None:
                for node_session in (one for one in sessions if isinstance(one, NodeSession)):
                    node_session.close()
                sessions, answer = [], {}
            elif isinstance(request, str):
                providers = _working(request.split()[1:]) if runtime == ONNXRUNTIME else []
                answer = {"runtime": _runtime_name(runtime), "providers": providers}
            else:
                source, target, number, times, cold = request
                if cold:
                    empty_caches()
                rows, spent = run_stored(sessions[number], Path(source), Path(target), times)
                answer = {"rows": rows, "processor": spent}
        except Exception as error:
            answer = {"full" if _lacks_room(error) else "failed": str(error)}
        answers.write(json.dumps({**answer, "seconds": time.perf_counter() - started}).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    requests, answers = take_streams()
    end_with(int(sys.argv[1]))
    chosen = _chosen(sys.argv[2:])
    if chosen == ONNXRUNTIME:
        with contextlib.suppress(ImportError):  # the first session says it
            import onnxruntime  # while nobody waits for it

            onnxruntime.disable_telemetry_events()
    main(requests, answers, chosen)
