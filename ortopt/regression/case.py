"""`Case`: one model in one configuration, and all that a manifest says of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortopt.regression.thresholds import DEFAULTS, Threshold

SPELLING = {
    "provider": "providers",
    "dim": "dims",
    "dim_hint": "dim_hints",
    "input_shape": "input_shapes",
    "image_input": "image_inputs",
    "custom_op_library": "custom_op_libraries",
}
"""Options whose flag is in the singular."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How models are run and compared, as far as it is said so far.

    Attributes:
        options: Arguments of `ortopt.api.make_options`, by name.
        inputs: An .npz file to verify with; empty for drawn inputs.
        thorough: Whether many more input sets are verified.
        layers: Whether intermediate values are compared, too, where a result differs.
        thresholds: How much worse each figure may be.
        expected_failure: Why the model is known to fail; empty if it is not.
        accepted_changes: Why it may be worse if its file or its options have changed; empty if it may not.
        skip: Why it is left out; empty if it is not.
        removed: Why there is no such model any more; empty if there should be one.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: str = ""
    thorough: bool = False
    layers: bool = False
    thresholds: Mapping[str, Threshold] = field(default_factory=lambda: DEFAULTS)
    expected_failure: str = ""
    accepted_changes: str = ""
    skip: str = ""
    removed: str = ""

    def merged(self, **said: Any) -> Settings:
        """Settings with what is said later; options and thresholds are merged by name."""
        for name in ("options", "thresholds"):
            if name in said:
                said[name] = {**getattr(self, name), **said[name]}
        return dataclasses.replace(self, **said)


@dataclass(frozen=True, slots=True)
class Case:
    """One model in one configuration.

    Attributes:
        model: The model's name in the baseline: its path below the root, or ``zoo:NAME``.
        configuration: The configuration's name; empty where there is one only.
        path: The model's file; None for one of the zoo.
        settings: How it is run and compared.
    """

    model: str
    configuration: str
    path: Path | None
    settings: Settings

    @property
    def name(self) -> str:
        """The name of the case: the model, and the configuration in brackets if there are several."""
        return f"{self.model} [{self.configuration}]" if self.configuration else self.model

    @property
    def nbytes(self) -> int:
        """The most bytes that the model can have: its file, and all that may be its external data."""
        if self.path is None:
            return 0
        return sum(size_of(path) for path in (self.path, *possible_data(self.path)))

    def order(self) -> dict[str, Any]:
        """What a process needs to know to run it, as data that json can write."""
        return {
            "name": self.name,
            "path": None if self.path is None else str(self.path),
            "zoo": None if self.path is not None else self.model.partition(":")[2],
            "options": plain_options(self.settings.options),
            "inputs": self.settings.inputs or None,
            "thorough": self.settings.thorough,
            **({"layers": True} if self.settings.layers else {}),
        }


def split_name(name: str) -> tuple[str, str]:
    """The model and the configuration of the case of a name."""
    if not name.endswith("]"):
        return name, ""
    model, _, configuration = name.removesuffix("]").rpartition(" [")
    return model, configuration


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as data that json can write and `ortopt.api.make_options` takes."""
    plain: dict[str, Any] = json.loads(json.dumps(options))
    return plain


def possible_data(path: Path) -> list[Path]:
    """The files beside a model that may hold its weights: external data stand in its folder, under any name."""
    try:
        beside = sorted(path.parent.iterdir())
    except OSError:
        return []
    wanted = (path.name, path.stem)
    return [
        other
        for other in beside
        if other != path
        and other.suffix in {".data", ".bin", ".onnx_data", ".weight", ".weights"}
        and other.name.startswith(wanted)
        and other.is_file()
    ]


def size_of(path: Path) -> int:
    """The size of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def model_of(order: Mapping[str, Any]) -> Path:
    """The file of the model that an order names, by its path or as one of the zoo."""
    if order["path"] is not None:
        return Path(order["path"])
    from ortopt import zoo

    return zoo.cached(order["zoo"])
