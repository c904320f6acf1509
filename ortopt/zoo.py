"""The model zoo: real graphs kept as weightless skeletons, grown back to whole models with the same bytes everywhere.

A skeleton (models/README.md has the format) is an ONNX file whose big initializers have a dtype and dims but no data;
its metadata says how to draw each. They are a distribution of their own, ortopt-zoo; a checkout has them. The light
models of the onnx wheel, whose own nodes make their weights, belong to the zoo too, as ``light_NAME``; they are whole
already.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib.util
import json
import os
import sys
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortopt.errors import InvalidModelError, OutputError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from ortopt.verification.inputs import Recorded

_KEY = "skeleton:"
_LIGHT = "light_"
_FORMAT = "1"  # part of the cache's key: another way of growing must not find this one's files


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What an input of a zoo model is fed.

    Attributes:
        dtype: numpy's name of the element type.
        shape: The dimensions.
        values: The elements in row-major order where the model accepts few others (token ids, masks); else None.
        draw: How to draw them where `values` is None: ``kind`` and its parameters, as in a skeleton.
    """

    dtype: str
    shape: tuple[int, ...]
    values: tuple[int | float | bool, ...] | None
    draw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a zoo model without growing it.

    Attributes:
        name: The name that every function here takes.
        family: The architecture; several exports of one architecture share it.
        exporter: What wrote the file.
        opset: Versions by domain, ``ai.onnx`` being the default one.
        nodes: Nodes of all its graphs, Constants included.
        inputs: What to feed, by input name.
    """

    name: str
    family: str
    exporter: str
    opset: Mapping[str, int]
    nodes: int
    inputs: Mapping[str, InputSpec]


def names() -> tuple[str, ...]:
    """Every model of the zoo, sorted; the light ones are there if the onnx wheel brings them.

    Raises:
        UsageError: The distribution ortopt-zoo is not installed.
    """
    return tuple(sorted((*_manifest(), *_light_files())))


def entry(name: str) -> Entry:
    """What is known of a model.

    Raises:
        UsageError: No model has this name.
    """
    path = skeleton(name)
    if name in _light_files():
        return _light_entry(name, path)
    fields = _manifest()[name]
    return Entry(
        name=name,
        family=fields["family"],
        exporter=fields["exporter"],
        opset=fields["opset"],
        nodes=fields["nodes"],
        inputs={key: _input_spec(spec) for key, spec in fields["inputs"].items()},
    )


def skeleton(name: str) -> Path:
    """The file that a model grows from.

    Raises:
        UsageError: No model has this name, or the distribution ortopt-zoo, which has it, is not installed.
    """
    light = _light_files().get(name)
    if light is not None:
        return light
    if name in _manifest():
        return _folder() / f"{name}.onnx"
    nearest = difflib.get_close_matches(name, names(), n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(nearest)}?" if nearest else "`ortopt zoo list` names them"
    raise UsageError(f"the zoo has no model named {name!r}; {hint}")


def grow(name: str, out: str | os.PathLike[str]) -> Path:
    """Write the whole model to `out`, which holds either what it held before or all of the model, at any instant.

    Returns:
        `out` as a path.

    Raises:
        UsageError: No model has this name.
        InvalidModelError: The skeleton is damaged.
        OutputError: `out` cannot be written.
    """
    source = skeleton(name)
    out = Path(out)
    _write(out, _grown(source))
    return out


def cached(name: str) -> Path:
    """The whole model in the user's cache folder, grown there on the first call; any number of processes may ask.

    The folder is ``ortopt/zoo`` below ``XDG_CACHE_HOME`` or what the platform has for it; a file's place depends on
    the skeleton's contents, so another version of ortopt never finds a stale one. The file is shared: do not change it.

    Raises:
        UsageError: No model has this name.
        InvalidModelError: The skeleton is damaged.
        OutputError: The cache folder cannot be written.
    """
    source = skeleton(name)
    key = hashlib.sha256(_FORMAT.encode() + source.read_bytes()).hexdigest()[:16]
    path = _cache_folder() / key / f"{name}.onnx"
    if not path.is_file():
        _write(path, _grown(source))
    return path


def inputs(name: str, seed: int = 0, *, sizes: Mapping[str, int] | None = None) -> Recorded:
    """Arrays that the model runs with, by input name.

    Args:
        name: A model of the zoo.
        seed: 0 draws the numbers that models/README.md defines, any other seed others of the same distribution. Inputs
            whose values are listed (token ids, masks, counts) are the same for every seed.
        sizes: Sizes of symbolic dimensions instead of the recorded ones; models/README.md says what is drawn then.

    Raises:
        UsageError: No model has this name, or the seed is negative.
    """
    import numpy as np

    from ortopt.serialization.load import load
    from ortopt.verification.inputs import Interface, Recorded

    if seed < 0:
        raise UsageError(f"a seed is at least 0, not {seed}")
    specs = entry(name).inputs
    shapes = {key: spec.shape for key, spec in specs.items()}
    if sizes:
        shapes |= Interface(load(cached(name))).resized(shapes, sizes)
    arrays = Recorded()
    for key, spec in specs.items():
        dtype = np.dtype(spec.dtype)
        if spec.values is not None:
            arrays[key] = _repeated(np.array(spec.values, dtype).reshape(spec.shape), shapes[key])
        else:
            arrays[key] = _draw(spec.draw, key, shapes[key], dtype, seed)
    return arrays


def _repeated(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of another shape from the same elements: along each axis its end, again and again if that is longer."""
    import numpy as np

    for axis, size in enumerate(shape):
        if size != array.shape[axis]:
            array = array.take(np.arange(-size, 0) % array.shape[axis], axis)
    return array


@functools.cache
def _folder() -> Path:
    """Where the skeletons are: beside the package in a checkout, else where ortopt-zoo is installed."""
    checkout = Path(__file__).resolve().parents[1] / "models"
    if (checkout / "pyproject.toml").is_file():  # of ortopt-zoo: no folder of somebody else's
        return checkout
    spec = importlib.util.find_spec("ortopt_zoo")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        if Path(folder, "manifest.json").is_file():
            return Path(folder)
    raise UsageError("the models of the zoo are not installed: pip install 'ortopt[zoo]'")


@functools.cache
def _manifest() -> dict[str, dict[str, Any]]:
    models = json.loads((_folder() / "manifest.json").read_text(encoding="utf-8"))["models"]
    return {fields["name"]: fields for fields in models}


@functools.cache
def _light_files() -> dict[str, Path]:
    spec = importlib.util.find_spec("onnx")  # where it is, without the cost of importing it
    roots = spec.submodule_search_locations if spec is not None and spec.submodule_search_locations else ()
    return {
        path.stem: path
        for root in roots
        for path in sorted(Path(root, "backend", "test", "data", "light").glob(f"{_LIGHT}*.onnx"))
    }


def _light_entry(name: str, path: Path) -> Entry:
    import onnx

    model = onnx.load_model(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    return Entry(
        name=name,
        family=name.removeprefix(_LIGHT),
        exporter="caffe2",
        opset={imported.domain or "ai.onnx": imported.version for imported in model.opset_import},
        nodes=sum(len(graph.node) for graph in _graphs(model.graph)),
        inputs={value.name: _light_input(value) for value in model.graph.input if value.name not in weights},
    )


def _light_input(value: onnx.ValueInfoProto) -> InputSpec:
    import onnx

    tensor = value.type.tensor_type
    return InputSpec(
        dtype=onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name,
        shape=tuple(dim.dim_value for dim in tensor.shape.dim),
        values=None,
        draw={"kind": "normal", "mean": 0.0, "std": 1.0},
    )


def _input_spec(fields: Mapping[str, Any]) -> InputSpec:
    return InputSpec(
        dtype=fields["dtype"],
        shape=tuple(fields["shape"]),
        values=tuple(fields["values"]) if "values" in fields else None,
        draw={key: value for key, value in fields.items() if key not in {"dtype", "shape", "values"}},
    )


def _grown(source: Path) -> bytes:
    """The bytes of the whole model; the weights are drawn straight into it, and written by protobuf once."""
    import onnx

    model = onnx.ModelProto()
    try:
        model.ParseFromString(source.read_bytes())
        specs = {
            prop.key.removeprefix(_KEY): json.loads(prop.value)
            for prop in model.metadata_props
            if prop.key.startswith(_KEY)
        }
        if not specs:
            return source.read_bytes()
        for graph in _graphs(model.graph):
            for tensor in graph.initializer:
                if tensor.name in specs:
                    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
                    tensor.raw_data = _draw(specs[tensor.name], tensor.name, tensor.dims, dtype).tobytes()
    except Exception as error:  # whatever protobuf, json and numpy say of a file that was cut or edited
        raise InvalidModelError(f"{source}: not a skeleton that can be grown: {error}") from error
    kept = [prop for prop in model.metadata_props if not prop.key.startswith(_KEY)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    data: bytes = model.SerializeToString()
    return data


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _draw(
    spec: Mapping[str, Any], name: str, dims: Sequence[int], dtype: np.dtype[Any], seed: int = 0
) -> np.ndarray[Any, Any]:
    """Draw as models/README.md defines; changing a number here changes every model of the zoo."""
    import numpy as np

    crc = zlib.crc32(name.encode())
    rng = np.random.Generator(np.random.PCG64(crc if seed == 0 else [crc, seed]))
    size = int(np.prod(dims))
    data: np.ndarray[Any, Any]
    match spec["kind"]:
        case "arange":
            data = np.arange(spec["start"], spec["start"] + size)
        case "choice":
            data = rng.integers(spec["low"], spec["high"], size)
        case "full":
            data = np.full(size, spec["value"])
        case "uniform":
            data = rng.uniform(spec["low"], spec["high"], size)
        case "normal":
            data = spec["mean"] + spec["std"] * rng.standard_normal(size, dtype=np.float32)
        case kind:
            raise ValueError(f"{name!r} is to be drawn as {kind!r}, which nobody defined")
    return data.reshape(dims).astype(dtype)


def _cache_folder() -> Path:
    override = os.environ.get("XDG_CACHE_HOME", "")
    if Path(override).is_absolute():  # a relative path is to be ignored, says the XDG specification
        base = Path(override)
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "ortopt" / "zoo"


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a device or a pipe: there is nothing to replace
            path.write_bytes(data)
            return
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
