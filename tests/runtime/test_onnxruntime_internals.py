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

from ortopt.runtime.onnxruntime_internals import CLASSES, PRIVATE_ATTRIBUTES, SEEN_WITH, NativeModule, native

ROOT = Path(__file__).parents[2]
HOME = ROOT / "ortopt" / "runtime" / "onnxruntime_internals.py"
EMPTY = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> main (float[1] x) => (float[1] y) { y = Neg (x) }'
).SerializeToString()
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
    binding = onnxruntime.InferenceSession(EMPTY, options, providers=["CPUExecutionProvider"]).io_binding()
    examples = {"OrtDevice": device, "OrtValue": value, "IOBinding": binding}
    assert examples.keys() == PRIVATE_ATTRIBUTES.keys()
    for owner, example in examples.items():
        for name in PRIVATE_ATTRIBUTES[owner]:
            assert hasattr(example, name), gone(f"{owner}.{name}")


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
            assert not (node.module or "").startswith("onnxruntime."), f"{path}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Import):
            assert not any(one.name.startswith("onnxruntime.") for one in node.names), f"{path}:{node.lineno}"
        elif isinstance(node, ast.Attribute) and node.attr in private_names() - own:
            raise AssertionError(f"{path}:{node.lineno}: {ast.unparse(node)} is private to ONNX Runtime")
        elif isinstance(node, ast.Constant) and node.value in {"_ortvalue", "_get_c_value", "_get_c_device", "_sess"}:
            raise AssertionError(f"{path}:{node.lineno}: {node.value!r} is private to ONNX Runtime")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "onnxruntime.capi":
            raise AssertionError(f"{path}:{node.lineno}: onnxruntime.capi is private")
