"""Models with the blocks that they have by their architecture, as their makers wrote them down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortopt import zoo

MANIFEST = "expected.json"


@dataclass(frozen=True, slots=True)
class Expected:
    """A model and its blocks.

    Attributes:
        name: Its name in tables.
        family: Its architecture.
        exporter: What wrote it.
        opset: Its version of ai.onnx.
        variant: How its weights are kept: fp32, fp16, int8 …
        set_aside: Whether it is not to be looked at while passes are written.
        path: The file.
        blocks: `kind` and `count` of each sort of block, and what else is known of it: models/README.md has the words.
    """

    name: str
    family: str
    exporter: str
    opset: int
    variant: str
    set_aside: bool
    path: Path
    blocks: Sequence[dict[str, Any]]


def of_zoo(names: Iterable[str] = ()) -> list[Expected]:
    """The models of the zoo that are in `blocks.json`, or those of them that are named."""
    listed = json.loads((zoo.skeleton("bert_small__ts17").parent / "blocks.json").read_text(encoding="utf-8"))
    wanted = set(names) or set(listed)
    models = []
    for name, blocks in listed.items():
        if name in wanted:
            entry = zoo.entry(name)
            variant = name.rpartition("__")[2]
            opset = entry.opset["ai.onnx"]
            models.append(Expected(name, entry.family, entry.exporter, opset, variant, False, zoo.cached(name), blocks))
    return models


def of_folder(folder: Path, *, set_aside: bool | None = None) -> list[Expected]:
    """The exports in a folder that `python -m benchmarks.exports` has filled.

    Args:
        folder: Has an `expected.json`.
        set_aside: Only those that are set aside, or only those that are not.
    """
    listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["models"]
    models = [
        Expected(
            one["name"], one["family"], one["exporter"], one["opset"], one["variant"], one["set_aside"],
            folder / f"{one['name']}.onnx", one["blocks"],
        )
        for one in listed
    ]  # fmt: skip
    return [one for one in models if set_aside is None or one.set_aside == set_aside]
