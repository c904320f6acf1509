"""Functions and files stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAX_FUNCTION_LINES = 50
"""Of code: the docstring is not counted, nor is the signature, which is as long as what a user may type."""

MAX_FILE_LINES = 600

FOLDERS = ("ortopt", "transformers", "benchmarks", "fuzzing", "tools")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if "transformers" not in path.relative_to(ROOT).parts[1:]  # the link of a checkout
)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the first statement behind the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return 0 if not body else (body[-1].end_lineno or 0) - body[0].lineno + 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    assert lines <= MAX_FILE_LINES, f"{path.name} has {lines} lines"
    large = {f.name: code_lines(f) for f in functions(ast.parse(text)) if code_lines(f) > MAX_FUNCTION_LINES}
    assert not large
