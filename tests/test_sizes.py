"""Functions and files stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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


def large_parts(path: Path) -> dict[str, int]:
    """The lines of a file and of its functions, as far as there are too many."""
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    large = {f.name: code_lines(f) for f in functions(ast.parse(text)) if code_lines(f) > MAX_FUNCTION_LINES}
    return {**large, **({"all": lines} if lines > MAX_FILE_LINES else {})}


def test_files_and_functions_are_small() -> None:
    found = {str(path.relative_to(ROOT)): large_parts(path) for path in FILES}
    assert {path: large for path, large in found.items() if large} == {}
