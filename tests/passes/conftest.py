"""Each example of a pass in tests/passes/examples is a test: ``pytest tests/passes/examples/NAME.txt``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import onnx_ir as ir
import pytest

from fuzzing import forms
from ortopt import testing
from tests.passes import example_files
from tests.passes.example_files import Example
from tests.processors import pretended


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Ask of each result that a test compares whether its forms are known to be right where it is said to run."""

    def check(original: ir.Model, result: ir.Model, _: object) -> None:
        faults = forms.faults(original, result)
        assert not faults, f"{'; '.join(faults)}: run python -m tools.probe_forms"

    with mock.patch.object(testing, "verify", forms.checked(testing.verify, check)):
        return (yield)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    """Have pytest read the files of examples."""
    if file_path.parent == example_files.FOLDER and file_path.suffix == ".txt":
        return _File.from_parent(parent, path=file_path)
    return None


class _File(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        seen: Counter[str] = Counter()
        for example in example_files.read(self.path.stem):
            seen[example.title] += 1
            number = f" ({seen[example.title]})" if seen[example.title] > 1 else ""
            yield _Test.from_parent(self, name=f"{example.title}{number}", example=example)


class _Test(pytest.Item):
    def __init__(self, *, example: Example, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.example = example

    def runtest(self) -> None:
        with pretended():
            self.example.check(self.path.stem)
