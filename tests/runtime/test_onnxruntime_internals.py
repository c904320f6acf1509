"""The private names of ONNX Runtime that ortopt uses: they are there, and only one file knows them."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ortopt.analysis.providers import release_of
from ortopt.runtime import onnxruntime_internals
from ortopt.runtime.onnxruntime_internals import (
    CLASSES,
    FEATURES,
    PRIVATE_ATTRIBUTES,
    SEEN_WITH,
    Feature,
    NativeModule,
    missing_features,
    native,
    native_device,
    optional_attribute,
    owning_tensor,
    size_in_bytes,
)
from tests.releases import INSTALLED

ROOT = Path(__file__).parents[2]
HOME = ROOT / "ortopt" / "runtime" / "onnxruntime_internals.py"
EMPTY = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> main (float[1] x) => (float[1] y) { y = Neg (x) }'
).SerializeToString()
OPTIONAL = {feature.name for feature in FEATURES}
"""Only functions that do without them ask for these."""
PRIVATE_TEXTS = {name for names in PRIVATE_ATTRIBUTES.values() for name in names}
FILES = [path for path in sorted((ROOT / "ortopt").rglob("*.py")) if path != HOME]


def members(protocol: Any) -> set[str]:
    """What a class declares: its methods and properties, and the attributes that it annotates."""
    own = {*vars(protocol), *inspect.get_annotations(protocol)}
    return {name for name in own if not name.startswith("_")}


def gone(name: str) -> str:
    return (
        f"ONNX Runtime {onnxruntime.__version__} has no {name}, which ortopt uses (seen with {SEEN_WITH}):"
        " change ortopt/runtime/onnxruntime_internals.py"
    )


@pytest.mark.parametrize("name", sorted(members(NativeModule)))
def test_the_module_has_what_is_used(name: str) -> None:
    assert hasattr(native(), name), gone(f"onnxruntime_pybind11_state.{name}")


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, protocol in CLASSES.items() for name in sorted(members(protocol))]
)
def test_the_classes_of_the_module_have_what_is_used(owner: str, name: str) -> None:
    assert hasattr(getattr(native(), owner), name), gone(f"onnxruntime_pybind11_state.{owner}.{name}")


def test_the_classes_in_python_have_the_private_attributes_that_are_used() -> None:
    device = onnxruntime.OrtDevice.make("cpu", 0)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1))
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(EMPTY, options, providers=["CPUExecutionProvider"])
    examples = {"OrtDevice": device, "OrtValue": value, "IOBinding": session.io_binding(), "InferenceSession": session}
    assert examples.keys() == PRIVATE_ATTRIBUTES.keys()
    for owner, example in examples.items():
        for name in PRIVATE_ATTRIBUTES[owner]:
            assert hasattr(example, name), gone(f"{owner}.{name}")


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_features_are_there_from_their_release_on(feature: Feature) -> None:
    assert (feature not in missing_features()) == (release_of(feature.release) <= INSTALLED), feature


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_what_a_release_lacks_is_told_with_the_one_that_has_it(feature: Feature) -> None:
    with pytest.raises(AttributeError, match=rf"has no {feature.name}: ONNX Runtime {feature.release} and newer"):
        optional_attribute(object(), feature.name)


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the installed ONNX Runtime seem to lack something."""
    there = onnxruntime_internals._has
    monkeypatch.setattr(onnxruntime_internals, "_has", lambda owner, name: name not in names and there(owner, name))


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([True, False]),
    np.zeros((0, 2), np.int64),
    np.array(7, np.uint16),
    np.arange(3, dtype=np.float16),
    np.zeros((2, 0, 3), np.float32),
    np.zeros((1, 0), bool),
    np.zeros((0, 0, 2), np.uint8)[:, :, :1],
]


@pytest.mark.parametrize("has_dlpack", [True, False])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_tensors_of_arrays_live_on_without_them(array: Any, has_dlpack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_dlpack:
        without(monkeypatch, "from_dlpack")
    given = array.copy()
    value = owning_tensor(given)
    shares = value.data_ptr() == given.ctypes.data
    assert shares == (has_dlpack and INSTALLED >= (1, 21)) or not array.size
    del given
    found = value.numpy()
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert (found == array).all()


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_sizes_of_tensors(array: Any, tells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tells:
        without(monkeypatch, "tensor_size_in_bytes")
    assert size_in_bytes(owning_tensor(array.copy())) == array.nbytes


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize(("elements", "nbytes"), [(1, 1), (4, 2), (5, 3)])
def test_sizes_of_tensors_of_half_bytes(
    elements: int, nbytes: int, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not tells:
        without(monkeypatch, "tensor_size_in_bytes")
    value = onnxruntime_internals.empty_tensor([elements], onnx.TensorProto.INT4, native_device("cpu"))
    assert size_in_bytes(value) == nbytes


@functools.cache
def private_names() -> frozenset[str]:
    """The private attributes of ONNX Runtime's classes in Python, as far as their source tells."""
    names: set[str] = set()
    for owner in vars(onnxruntime).values():
        if not inspect.isclass(owner) or not owner.__module__.endswith("onnxruntime_inference_collection"):
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(owner)))):
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
    return frozenset(name for name in names if name.startswith("_") and not name.startswith("__"))


def test_the_private_names_that_are_looked_for_contain_those_that_are_used() -> None:
    assert private_names() >= {name for names in PRIVATE_ATTRIBUTES.values() for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_one_file_uses_private_names_of_onnxruntime(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if "onnxruntime" not in text:
        return
    tree = ast.parse(text)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            assert (node.module or "") != "ortopt.runtime.onnxruntime_internals" or "native" not in names, path
            assert not (node.module or "").startswith("onnxruntime."), f"{path}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Import):
            assert not any(one.name.startswith("onnxruntime.") for one in node.names), f"{path}:{node.lineno}"
        elif isinstance(node, ast.Attribute) and node.attr in private_names() - own:
            raise AssertionError(f"{path}:{node.lineno}: {ast.unparse(node)} is private to ONNX Runtime")
        elif isinstance(node, ast.Attribute) and node.attr in OPTIONAL:
            raise AssertionError(f"{path}:{node.lineno}: not every ONNX Runtime has {ast.unparse(node)}")
        elif isinstance(node, ast.Constant) and node.value in PRIVATE_TEXTS:
            raise AssertionError(f"{path}:{node.lineno}: {node.value!r} is private to ONNX Runtime")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "onnxruntime.capi":
            raise AssertionError(f"{path}:{node.lineno}: onnxruntime.capi is private")
