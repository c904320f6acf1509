"""The zoo grows the bytes that its format defines, wherever ortopt is, and says what it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortopt import zoo
from ortopt.errors import InvalidModelError, OutputError, UsageError
from tests.texts import table

WEIGHTS = dict(table(Path(__file__).parent / "weights.txt", "models"))
LIGHT = tuple(name for name in zoo.names() if name.startswith("light_"))
# What the format draws, to twelve digits: says which kind is wrong when a checksum is.
DRAWN = {
    "normal": (
        {"kind": "normal", "mean": 0.5, "std": 2.0},
        "float32",
        [2.493225336074829, 2.287759304046631, 0.4515605568885803, 1.012195110321045],
    ),
    "uniform": (
        {"kind": "uniform", "low": -1.0, "high": 3.0},
        "float64",
        [2.8182473597819735, -0.09578793774297534, -0.41750121208321644, 0.6313261678799753],
    ),
    "full": ({"kind": "full", "value": 0.25}, "float16", [0.25, 0.25, 0.25, 0.25]),
    "arange": ({"kind": "arange", "start": 7}, "int64", [7, 8, 9, 10]),
    "choice": ({"kind": "choice", "low": -3, "high": 90}, "int8", [50, 85, -3, 18]),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_names_are_the_manifest_and_the_light_models() -> None:
    assert list(zoo.names()) == sorted((*WEIGHTS, *LIGHT))
    assert "light_resnet50" in LIGHT


def test_every_skeleton_is_listed_and_there() -> None:
    folder = zoo.skeleton("bert_small__ts17").parent
    assert {path.stem for path in folder.glob("*.onnx")} == set(WEIGHTS)


@pytest.mark.parametrize("name", WEIGHTS)
def test_grows_the_bytes_of_the_format(name: str, tmp_path: Path) -> None:
    model = onnx.load(zoo.grow(name, tmp_path / "new folder" / "model.onnx"))
    crc = 0
    for tensor in model.graph.initializer:
        crc = zlib.crc32(tensor.name.encode() + tensor.raw_data, crc)
    assert f"{crc:08X}" == WEIGHTS[name]
    assert not [prop.key for prop in model.metadata_props if prop.key.startswith("skeleton:")]
    for tensor in model.graph.initializer:
        assert onnx.numpy_helper.to_array(tensor).shape == tuple(tensor.dims)


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_manifest_is_true(name: str) -> None:
    model = onnx.load(zoo.skeleton(name))
    entry = zoo.entry(name)
    assert entry.name == name
    assert entry.nodes == sum(len(graph.node) for graph in zoo._graphs(model.graph))
    assert entry.opset == {imported.domain or "ai.onnx": imported.version for imported in model.opset_import}
    weights = {tensor.name for tensor in model.graph.initializer}
    assert list(entry.inputs) == [value.name for value in model.graph.input if value.name not in weights]
    for value in model.graph.input:
        tensor = value.type.tensor_type
        spec = entry.inputs[value.name]
        assert np.dtype(spec.dtype) == onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        assert len(spec.shape) == len(tensor.shape.dim)
        for dim, size in zip(tensor.shape.dim, spec.shape, strict=True):
            assert dim.dim_param or dim.dim_value == size


@pytest.mark.parametrize("kind", DRAWN)
def test_draws_each_kind(kind: str) -> None:
    spec, dtype, expected = DRAWN[kind]
    drawn = zoo._draw(spec, "layer.0.weight", [2, 2], np.dtype(dtype))
    assert drawn.dtype == dtype
    assert drawn.shape == (2, 2)
    assert drawn.reshape(-1).tolist() == expected


def test_draws_scalars_and_nothing() -> None:
    spec = {"kind": "uniform", "low": 0.0, "high": 1.0}
    assert zoo._draw(spec, "x", [], np.dtype("float32")).shape == ()
    assert zoo._draw(spec, "x", [3, 0], np.dtype("float32")).shape == (3, 0)


def test_inputs_follow_the_manifest() -> None:
    arrays = zoo.inputs("gpt2_past__ts17")
    entry = zoo.entry("gpt2_past__ts17")
    assert list(arrays) == list(entry.inputs)
    for key, array in arrays.items():
        assert (array.dtype.name, array.shape) == (entry.inputs[key].dtype, entry.inputs[key].shape)
    assert arrays["input_ids"].reshape(-1).tolist() == list(entry.inputs["input_ids"].values or ())


def test_seeds() -> None:
    first, again, other = (zoo.inputs("gpt2_past__ts17", seed) for seed in (0, 0, 1))
    drawn, listed = "past_key_values_0_key", "input_ids"
    assert first[drawn].tobytes() == again[drawn].tobytes() != other[drawn].tobytes()
    assert first[listed].tobytes() == other[listed].tobytes()
    with pytest.raises(UsageError, match="at least 0"):
        zoo.inputs("gpt2_past__ts17", -1)


@pytest.mark.parametrize("name", LIGHT)
def test_light_models_are_whole_as_they_are(name: str, tmp_path: Path) -> None:
    grown = zoo.grow(name, tmp_path / "model.onnx")
    assert grown.read_bytes() == zoo.skeleton(name).read_bytes()
    entry = zoo.entry(name)
    assert (entry.exporter, entry.nodes) == ("caffe2", len(onnx.load(grown).graph.node))
    arrays = zoo.inputs(name)
    assert [array.dtype for array in arrays.values()] == [np.dtype("float32")]
    assert [array.shape for array in arrays.values()] == [spec.shape for spec in entry.inputs.values()]


@pytest.mark.parametrize("name", ["bert_small__dyn20raw", "control_flow__script17", "light_squeezenet"])
def test_runs_in_onnx_runtime(name: str, cache: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(zoo.cached(name), providers=["CPUExecutionProvider"])
    for output in session.run(None, zoo.inputs(name)):
        assert np.isfinite(output).all()


@pytest.mark.parametrize("ask", [zoo.entry, zoo.skeleton, zoo.cached, zoo.inputs])
def test_an_unknown_name_names_the_nearest(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(UsageError, match=r"no model named 'bert_smal_ts17'; did you mean bert_small__ts17"):
        ask("bert_smal_ts17")
    with pytest.raises(UsageError, match="ortopt zoo list"):
        ask("%%%%%%%%")


@pytest.mark.parametrize("name", ["../models/bert_small__ts17", "", "manifest", "light_", "light_../light_resnet50"])
def test_a_name_is_no_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        zoo.grow(name, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_cached_grows_once(cache: Path) -> None:
    path = zoo.cached("superres__ts13")
    assert path.is_relative_to(cache / "ortopt" / "zoo")
    assert path.name == "superres__ts13.onnx"
    before = path.stat()
    assert zoo.cached("superres__ts13") == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_cached_loads_no_onnx_when_it_is_there(cache: Path) -> None:
    zoo.cached("superres__ts13")
    code = "import sys; from ortopt import zoo; zoo.cached('superres__ts13'); print({'onnx', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_a_relative_cache_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert zoo._cache_folder().is_relative_to(tmp_path)


def test_processes_that_cache_at_once_agree(cache: Path) -> None:
    code = "import zlib; from ortopt import zoo; print(zlib.crc32(zoo.cached('superres__ts13').read_bytes()))"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = {process.communicate()[0] for process in started}
    assert [process.returncode for process in started] == [0] * 4
    assert printed == {f"{zlib.crc32(zoo.cached('superres__ts13').read_bytes())}\n"}
    assert [path.name for path in zoo.cached("superres__ts13").parent.iterdir()] == ["superres__ts13.onnx"]


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written"):
        zoo.grow("superres__ts13", tmp_path / "file" / "model.onnx")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        zoo.grow("superres__ts13", tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.skipif(os.name != "posix", reason="a device of POSIX")
def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "device").symlink_to(os.devnull)
    zoo.grow("lstm_tagger__ts13", tmp_path / "device")
    assert (tmp_path / "device").is_symlink()
    assert [path.name for path in tmp_path.iterdir()] == ["device"]


@pytest.mark.parametrize(
    ("damage", "because"),
    [
        (lambda data: data[: len(data) // 2], "cannot be grown|not a skeleton"),
        (lambda data: data.replace(b'"kind": "normal"', b'"kind": "zormal"'), "nobody defined"),
        (lambda data: data.replace(b'"std"', b'"xtd"'), "std"),
        (lambda data: data.replace(b'{"kind"', b'["kind"'), "not a skeleton"),
    ],
)
def test_a_damaged_skeleton(damage: object, because: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(damage)
    broken = tmp_path / "superres__ts13.onnx"
    broken.write_bytes(damage(zoo.skeleton("superres__ts13").read_bytes()))
    monkeypatch.setattr(zoo, "skeleton", lambda name: broken)
    out = tmp_path / "out.onnx"
    out.write_bytes(b"old")
    with pytest.raises(InvalidModelError, match=because):
        zoo.grow("superres__ts13", out)
    assert out.read_bytes() == b"old"


def test_tensors_in_subgraphs_grow_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (bool c) => (float[2] y) {
            y = If (c) <then_branch = yes () => (float[2] t) <float[2] w = {1, 2}> { t = Identity (w) },
                        else_branch = no () => (float[2] e) { e = Constant <value = float[2] {3, 4}> () }>
        }"""
    )
    [tensor] = model.graph.node[0].attribute[0].g.initializer
    tensor.ClearField("float_data")
    model.metadata_props.add(key="skeleton:w", value=json.dumps({"kind": "full", "value": 5.0}))
    model.metadata_props.add(key="author", value="us")
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    monkeypatch.setattr(zoo, "skeleton", lambda name: tmp_path / "in.onnx")
    grown = onnx.load(zoo.grow("any", tmp_path / "out.onnx"))
    assert onnx.numpy_helper.to_array(grown.graph.node[0].attribute[0].g.initializer[0]).tolist() == [5.0, 5.0]
    assert [prop.key for prop in grown.metadata_props] == ["author"]
