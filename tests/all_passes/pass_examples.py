"""The examples that the tests of each pass rewrite, for tests that ask something else of all passes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from unittest import mock

import onnx
import onnx_ir as ir
from onnx import ModelProto

from ortopt import testing
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import DEFAULT_OPSET, parse
from tests.passes import example_files

FOLDER = Path(__file__).parents[1] / "passes"


class Recorded(Exception):  # noqa: N818 -- ends a test when it has said what it would check
    """An example has been written down."""


def module_of(name: str) -> ModuleType | None:
    path = FOLDER / f"test_{name}.py"
    if not path.exists():  # all of its examples are text
        return None
    spec = importlib.util.spec_from_file_location(f"examples_of_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WHOLE_RUNS = {
    "attention_guarding": "only what another pass has made is guarded",
    "opset_conversion": "it converts for the passes that come after it",
}
"""Passes that do nothing by themselves, with the reason: their tests are whole runs."""


def has_tests(name: str) -> bool:
    """Whether a pass is one of the repository, with tests here."""
    return bool(example_files.read(name)) or (FOLDER / f"test_{name}.py").exists()


def arguments(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The sets of arguments that a test is parametrized with."""
    choices: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names = [n.strip() for n in mark.args[0].split(",")] if isinstance(mark.args[0], str) else list(mark.args[0])
        rows = [getattr(row, "values", row) if not isinstance(row, dict) else row for row in mark.args[1]]
        choices.append([dict(zip(names, (row,) if len(names) == 1 else row, strict=False)) for row in rows])
    for chosen in itertools.product(*choices):
        yield {name: value for one in chosen for name, value in one.items()}


def examples(name: str, most: int | None = 2) -> list[tuple[ModelProto, dict[str, Any]]]:
    """Models that a pass rewrites, with what else its tests give: level, target, options.

    Args:
        name: Name of the pass.
        most: Number of sets of arguments that each test is run with; all if None.
    """
    return [(onnx.load_from_string(model), dict(more)) for model, more in _examples(name, most)]


@functools.cache  # several modules ask
def _examples(name: str, most: int | None) -> list[tuple[bytes, dict[str, Any]]]:
    found: list[tuple[bytes, dict[str, Any]]] = []

    def record(transformer: object, before: str | ir.Model, after: object = None, **more: Any) -> None:
        model = parse(before, more.get("opset", DEFAULT_OPSET)) if isinstance(before, str) else load(before)
        found.append((to_bytes(model), more))
        raise Recorded

    run_tests(name, record, skip, most)
    return found


def refusals(name: str) -> list[tuple[str, ModelProto, dict[str, Any]]]:
    """Reasons that the tests of a pass expect, each with a model that the pass leaves alone; and level or target."""
    found: dict[str, tuple[str, ModelProto, dict[str, Any]]] = {}

    def record(
        transformer: object,
        before: str | ir.Model,
        because: str | None = None,
        *,
        opset: int = DEFAULT_OPSET,
        **more: Any,
    ) -> None:
        if because and because not in found:
            model = parse(before, opset) if isinstance(before, str) else load(before)
            found[because] = because, onnx.load_from_string(to_bytes(model)), more
        raise Recorded

    run_tests(name, skip, record, most=100)
    return list(found.values())


def _calls(test: FunctionType, called: list[Callable[..., None]]) -> bool:
    """Whether a test names one of these, or a function of its module that does: others are whole runs, and slow."""
    seen: set[FunctionType] = set()
    waiting = [test]
    while waiting:
        function = waiting.pop()
        seen.add(function)
        named = [function.__globals__.get(name) for name in _names(function.__code__)]
        named += [cell.cell_contents for cell in function.__closure__ or ()]
        if any(getattr(each, "func", each) is wanted for each in named for wanted in called):
            return True
        waiting += [each for each in named if isinstance(each, FunctionType) and each not in seen]
    return False


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function and those within it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def skip(*_: Any, **__: Any) -> None:
    raise Recorded


def run_tests(name: str, rewrites: Callable[..., None], keeps: Callable[..., None], most: int | None) -> None:
    """Run the tests of a pass, and its examples that are text, with these for `check_rewrites` and `check_keeps`.

    Args:
        name: Name of the pass.
        rewrites: Called instead of `check_rewrites`.
        keeps: Called instead of `check_keeps`.
        most: Number of sets of arguments that each test is run with, and of variants of an example that it rewrites;
            but for tables: each of their rows is a test.
    """
    variants: Counter[str] = Counter()
    for example in example_files.read(name):
        variants[example.group] += 1
        if example.kept or most is None or variants[example.group] <= most:
            with contextlib.suppress(Recorded):
                (keeps if example.kept else rewrites)(name, example.model, **example.arguments)
    with (  # before it is loaded: some tests bind their first arguments then
        mock.patch.object(testing, "check_rewrites", rewrites),
        mock.patch.object(testing, "check_keeps", keeps),
    ):
        module = module_of(name)
    if module is None:
        return
    for test_name, test in vars(module).items():
        if not test_name.startswith("test_") or not _calls(test, [rewrites, keeps]):
            continue
        for given in itertools.islice(arguments(test), None if hasattr(test, "table") else most):
            try:
                test(**given)
            except Exception:  # a test that needs more than its arguments gives no example
                continue
