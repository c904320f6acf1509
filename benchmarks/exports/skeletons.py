"""Weightless skeletons for the zoo: `python -m benchmarks.exports.skeletons EXPORT.onnx ARCHITECTURE NAME`.

Takes an export of `benchmarks.exports`, writes ``models/NAME.onnx`` in the format that models/README.md defines, and
enters it into models/manifest.json and models/blocks.json.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.exports.catalog import ARCHITECTURES

MODELS = Path(__file__).parents[2] / "models"
KEPT_BYTES = 1024
"""What is this small may be a shape, an axis, an epsilon: passes look at its values."""

LARGE_BYTES = 64 * 1024
"""Integers that are in no order are kept as they are up to this size."""

DATA_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def describe(array: np.ndarray[Any, Any], kept: int = LARGE_BYTES) -> dict[str, Any] | None:
    """How to draw an array that looks like this one to an optimizer; None if it must be kept.

    Args:
        array: The array.
        kept: The size in bytes up to which integers in no order must be.
    """
    flat = array.reshape(-1)
    if flat.dtype.kind in "iu":
        return _integers(flat, kept)
    if flat.dtype.kind != "f" or not np.isfinite(flat).all():
        return None
    values = flat.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return {"kind": "full", "value": low}
    if len(np.unique(values[:4096])) <= 8:  # a table of few values, such as a mask
        return None
    if low >= 0:
        return {"kind": "uniform", "low": low, "high": high}
    return {"kind": "normal", "mean": float(values.mean()), "std": float(values.std())}


def _integers(flat: np.ndarray[Any, Any], kept: int) -> dict[str, Any] | None:
    if (np.diff(flat.astype(np.int64)) == 1).all():
        return {"kind": "arange", "start": int(flat[0])}
    if flat.nbytes <= kept:
        return None
    return {"kind": "choice", "low": int(flat.min()), "high": int(flat.max()) + 1}


def strip(model: onnx.ModelProto, small: int = LARGE_BYTES) -> onnx.ModelProto:
    """Take large weights and the exporter's traces out of a model.

    Args:
        model: The model, which changes.
        small: The size in bytes up to which integers in no order stay.
    """
    for graph in _graphs(model.graph):
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            spec = describe(array, small) if array.nbytes > KEPT_BYTES else None
            if spec is not None:
                for field in DATA_FIELDS:
                    tensor.ClearField(field)
                model.metadata_props.add(key=f"skeleton:{tensor.name}", value=json.dumps(spec))
        for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
            part.ClearField("doc_string")
            kept = [prop for prop in part.metadata_props if prop.key in KEPT_PROPERTIES]
            del part.metadata_props[:]
            part.metadata_props.extend(kept)
    return model


KEPT_PROPERTIES = {"namespace", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes"}
"""What the other skeletons have of an exporter's notes: where a node was in the model, not in whose files."""


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def describe_input(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """An input as the manifest has it: integers by their values, numbers by their distribution."""
    facts = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.dtype.kind != "f":
        return {**facts, "values": array.reshape(-1).tolist()}
    return {**facts, "kind": "normal", "mean": float(array.mean()), "std": float(array.std())}


def entry(name: str, family: str, model: onnx.ModelProto, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """What the manifest says of a model."""
    recipe, _, variant = name.partition("__")
    return {
        "name": name,
        "recipe": recipe,
        "family": family,
        "exporter": "dynamo" if variant.startswith("dyn") and variant != "dynamic_int8" else "torchscript",
        "variant": variant,
        "opset": {imported.domain or "ai.onnx": imported.version for imported in model.opset_import},
        "nodes": sum(len(graph.node) for graph in _graphs(model.graph)),
        "producer": f"{model.producer_name} {model.producer_version}",
        "inputs": {key: describe_input(array) for key, array in inputs.items()},
    }


def main() -> None:
    """Read the command line, write the skeleton and its entries."""
    import torch

    from benchmarks.exports.inputs import INPUTS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports.skeletons")
    parser.add_argument("export", type=Path)
    parser.add_argument("architecture", choices=ARCHITECTURES)
    parser.add_argument("name", help="RECIPE__VARIANT")
    options = parser.parse_args()
    architecture = ARCHITECTURES[options.architecture]
    torch.manual_seed(0)
    arguments, _ = INPUTS[architecture.inputs](architecture.sizes)
    model = onnx.load(options.export)
    names = {value.name for value in model.graph.input}
    family = architecture.name.partition("-")[0]
    listed = entry(
        options.name, family, model, {key: value.numpy() for key, value in arguments.items() if key in names}
    )
    onnx.save(strip(model), MODELS / f"{options.name}.onnx")
    enter(listed, [dict(block) for block in architecture.blocks])


def enter(listed: dict[str, Any], blocks: list[dict[str, Any]]) -> None:
    """Enter a model into the manifest and the table of blocks.

    Args:
        listed: What the manifest says of it.
        blocks: Its blocks.
    """
    path = MODELS / "manifest.json"
    models = [one for one in json.loads(path.read_text(encoding="utf-8"))["models"] if one["name"] != listed["name"]]
    models = sorted([*models, listed], key=lambda one: str(one["name"]))
    path.write_text(_manifest(models), encoding="utf-8")
    path = MODELS / "blocks.json"
    table = {**json.loads(path.read_text(encoding="utf-8")), listed["name"]: blocks}
    path.write_text(_blocks(table), encoding="utf-8")


def _manifest(models: list[dict[str, Any]]) -> str:
    """The manifest with each list on one line."""
    text = json.dumps({"models": models}, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: f"[{' '.join(found[0][1:-1].split())}]", text) + "\n"


def _blocks(table: Mapping[str, list[dict[str, Any]]]) -> str:
    """A model's blocks, one a line, without what is usual."""
    models = []
    for name, blocks in sorted(table.items()):
        lines = ",\n".join(f"  {json.dumps(_short(block))}" for block in blocks)
        models.append(f' "{name}": [' + (f"\n{lines}\n " if lines else "") + "]")
    return "{\n" + ",\n".join(models) + "\n}\n"


def _short(block: Mapping[str, Any]) -> dict[str, Any]:
    usual = {"kv_heads": block.get("heads"), "mask": "", "past": False, "interleaved": False}
    return {key: value for key, value in block.items() if key not in usual or value != usual[key]}


if __name__ == "__main__":
    main()
