"""The models that the tests of each pass rewrite or keep, and the options that these tests ask for."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, Final

import onnx
import onnx_ir as ir
from onnx import ModelProto

from ortopt import registry
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import DEFAULT_OPSET, parse
from tests.all_passes.pass_examples import run_tests

_ARGUMENTS: Final = 12
"""Sets of arguments that each test gives examples with."""

_MAX_BYTES: Final = 1 << 20

_OPTIONS: Final = (
    "target",
    "fusions",
    "finite_math",
    "march",
    "for_threads",
    "max_growth",
    "dim_hints",
    "min_onnxruntime",
)
"""Those of a test's options that a mutant keeps: with the others a result is meant to compute something else."""


@dataclasses.dataclass(frozen=True)
class Example:
    """A model of a test.

    Attributes:
        transformer: Name of the pass.
        model: The model.
        options: Arguments of `ortopt.optimize` that the test asks for.
        inputs: Inputs that it gives, by name.
    """

    transformer: str
    model: ModelProto
    options: dict[str, Any]
    inputs: dict[str, Any]


def names() -> tuple[str, ...]:
    """The names of all passes, in the order of the registry."""
    return tuple(kind.name for kind in registry.installed() if kind.name)


@functools.lru_cache(maxsize=4)
def examples(name: str) -> tuple[Example, ...]:
    """The models of a pass's tests, each once: those that it rewrites and those that it must keep."""
    found: dict[bytes, Example] = {}

    def record(_: object, before: str | ir.Model, *__: object, opset: int = DEFAULT_OPSET, **more: Any) -> None:
        model = to_bytes(parse(before, opset) if isinstance(before, str) else load(before))
        if len(model) <= _MAX_BYTES:
            inputs = dict(more.get("inputs") or {})
            found.setdefault(model, Example(name, onnx.load_from_string(model), _options(more), inputs))

    run_tests(name, record, record, most=_ARGUMENTS)
    return tuple(found.values())


def _options(more: dict[str, Any]) -> dict[str, Any]:
    """What a test asks for, as arguments of `ortopt.optimize`."""
    given: Options | None = more.get("options")
    if given is None:
        return {"target": more.get("target", "ort"), "fusions": "all"}
    default, found = Options(), {}
    for option in _OPTIONS:
        value = getattr(given, option)
        if value != getattr(default, option) and value is not None:
            found[option] = value.value if isinstance(value, enum.Enum) else value
    if "min_onnxruntime" in found:
        found["min_onnxruntime"] = ".".join(map(str, found["min_onnxruntime"]))
    return found
